"""What a file is told to be, and what its user is told to do."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from pathlib import Path

import pytest

from tests.make_kineto import decode_loop, kineto_file, write
from tracer.collectors.kineto.trace import read_kineto
from tracer.collectors.sniff import FORMATS, sniff
from tracer.errors import EmptyTraceError, InputError, NotATraceError

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
SAMPLES = {
    "git-lfs": (LFS, "git lfs pull"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", "fetch the file"),
    "xml": (b'<?xml version="1.0"?><Error/>', "PyTorch profiler"),
    "nsys-report": (b"NVIDIA Tegra Profiler Report 2025@5", "nsys export --type sqlite"),
    "perfetto-export": (b'{"tracer":"1.0","baseTimeNanoseconds":5,"traceEvents":[', "made of"),
    "nsys-sqlite": (b"SQLite format 3\0" + b"\0" * 90 + b"CREATE TABLE StringIds", "PyTorch"),
    "rocpd": (b"SQLite format 3\0" + b"\0" * 90 + b"CREATE TABLE rocpd_string", "rocpd convert"),
    "sqlite": (b"SQLite format 3\0" + b"\0" * 90 + b"CREATE TABLE x", "nsys export"),
    "memory-snapshot": (pickle.dumps({"segments": [], "device_traces": []}), "no timeline"),
    "flight-recorder": (pickle.dumps({"version": "2.1", "pg_config": {}}), "tracer ranks"),
    "pickle": (pickle.dumps([1, 2]), "PyTorch profiler"),
    "zstd": (b"\x28\xb5\x2f\xfd1234", "unzstd"),
    "xz": (b"\xfd7zXZ\0abc", "unxz"),
    "bzip2": (b"BZh91AY&SY", "bunzip2"),
    "parquet": (b"PAR1....", "directory of the saved run"),
    "utf-16": ('{"traceEvents": []}'.encode("utf-16"), "UTF-8"),
    "binary": (b"\x7fELF\x02\x01\x01\0\0\0", "PyTorch profiler"),
    "rocprof-json": (b'{"rocprofiler-sdk-tool":[{}]}', "PyTorch profiler"),
    "rocprof-csv": (b'"Kind","Kernel_Name","Start_Timestamp","End_Timestamp"\n', "rocprofv3 JSON"),
    "execution-trace": (b'{"schema": "1.0.1", "pid": 1, "nodes": [', "profiler's trace"),
    "memory-timeline": (b"[[-1, 1, 37888, 7], [-1, 1, 512, 7]]", "no timeline"),
    "torch-trace": (b'{"string_table":["a"]}\n{"dynamo_start": {}}\n', "no timeline"),
    "csv": (b"a,b,c\n1,2,3\n", "PyTorch profiler"),
    "json": (b"[1,2,3]\n", "PyTorch profiler"),
    "text": (b"hello\n", "PyTorch profiler"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_other_files_are_named_and_refused(tmp_path: Path, name: str, packed: bool) -> None:
    content, advice = SAMPLES[name]
    path = write(tmp_path / "file.json", gzip.compress(content) if packed else content)
    assert sniff(path).name == name
    with pytest.raises(NotATraceError) as caught:
        read_kineto(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message and sniff(path).title in message and advice in message
    assert (caught.value.rule, caught.value.exit_code) == ("trace.not_a_trace", 3)


def test_json_is_known_by_its_beginning(tmp_path: Path) -> None:
    numbers, names = b"[" + b"1234.5, " * 20_000, b'["' + b"a" * 100_000
    for content in (b'"text"', b"[[]]", numbers, names, b"[0, {" + b'"a": 1, ' * 20_000):
        assert sniff(write(tmp_path / "a.json", content)).name == "json"
    for content in (b"[1,0]<stdout>: begun\n", b"1 2 3", b"[1, 2", b"[" * 100_000):
        assert sniff(write(tmp_path / "a.json", content)).name in ("text", "csv")


def test_formats_have_names_of_their_own() -> None:
    names = [known.name for known in FORMATS]
    assert len(names) == len(set(names))
    assert {*SAMPLES, "empty", "zip", "tar", "gzip", "kineto"} <= set(names)


def test_a_zip_archive_and_gzip_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("t.json", "{}")
    assert sniff(tmp_path / "a.zip").name == "zip"
    twice = write(tmp_path / "b", gzip.compress(gzip.compress(b"{}")))
    with pytest.raises(NotATraceError, match="gunzip"):
        read_kineto(twice)


def test_a_trace_names_its_reader(tmp_path: Path) -> None:
    path = kineto_file(tmp_path, decode_loop())
    assert sniff(path).reader == "tracer.collectors.kineto.trace:read_kineto"
    assert sniff(write(tmp_path / "list.json", '[ {"ph": "X"}')).reader is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "b": [2]}', "without a list of events"),
        ('{"nested": {"traceEvents": 5}}', "without a list of events"),
        ('{"schemaVersion": 1, "devicePro', "ends before"),
    ],
)
def test_json_without_events(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path / "t.json", text)
    with pytest.raises(NotATraceError, match=words):
        read_kineto(path)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(NotATraceError):
        read_kineto(write(tmp_path / "t.json", pickle.dumps({"segments": Evil()})))
    assert not (tmp_path / "made").exists()


def test_a_missing_file_a_directory_and_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="no regular file"):
        read_kineto(tmp_path / "pipe")
    with pytest.raises(InputError, match="there is no such file"):
        read_kineto(tmp_path / "nothing.json")
    with pytest.raises(NotATraceError, match="a directory"):
        read_kineto(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = kineto_file(tmp_path, decode_loop())
    path.chmod(0)
    with pytest.raises(InputError, match="no permission"):
        read_kineto(path)


def test_no_permission_as_the_system_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kineto_file(tmp_path, decode_loop())

    def refuse(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match="no permission to read it"):
        read_kineto(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gzip data that cannot be unpacked"):
        read_kineto(write(tmp_path / "t.json", b"\x1f\x8b\x08\x00" + b"\xff" * 60))
    with pytest.raises(EmptyTraceError):
        read_kineto(write(tmp_path / "t.json", gzip.compress(b"x")[:10]))

"""What a file is, judged by its first bytes: which reader takes it, or what to do with it instead.

A reader joins by giving its format a `reader` in the table, which is tried from top to bottom.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from tracer.errors import EmptyTraceError, InputError, NotATraceError, TracerError
from tracer.held_ranks import split_rank
from tracer.near import absent

HEAD_BYTES = 1 << 16
_GZIP = b"\x1f\x8b"
_STEP = 256
READS = (
    "this build reads PyTorch profiler traces (.json, .json.gz), exports of Nsight Systems "
    "(.sqlite), rocprofv3 JSON and CSV"
)

Test = Callable[[bytes], bool]


@dataclass(frozen=True)
class Format:
    """A kind of file. `reader` is the function that reads it, as "module:function"; where there is
    none, `advice` says what to do with such a file. `ranks`: of a format whose files can hold
    several ranks, the function that lists them. `sure`: what a file that nobody named must hold
    besides, where the test takes much else."""

    name: str
    title: str
    test: Test
    advice: str = ""
    reader: str | None = None
    ranks: str | None = None
    sure: Test = lambda head: True

    def refusal(self, path: str | PathLike[str]) -> TracerError:
        """The error for a file of this format, in one line."""
        if self.name == "empty":
            return EmptyTraceError(f"{path}: the file is empty")
        return NotATraceError(f"{path}: {self.title}; {self.advice or READS}")


def _starts(*magic: bytes) -> Test:
    return lambda head: head.startswith(magic)


def _matches(pattern: bytes) -> Test:
    found = re.compile(pattern, re.DOTALL | re.IGNORECASE)
    return lambda head: found.match(head) is not None


def _all_of(*tests: Test) -> Test:
    return lambda head: all(test(head) for test in tests)


def _any_of(*tests: Test) -> Test:
    return lambda head: any(test(head) for test in tests)


def _holds(*words: bytes) -> Test:
    return lambda head: any(word in head for word in words)


def _at(offset: int, magic: bytes) -> Test:
    return lambda head: head[offset : offset + len(magic)] == magic


def _is_binary(head: bytes) -> bool:
    return b"\0" in head[:512]


def _is_json(head: bytes) -> bool:
    """Whether it is JSON, as far as the beginning of a file shows it."""
    text = head.decode("utf-8-sig", "ignore")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        cut = len(head) >= HEAD_BYTES
        return cut and (error.pos > len(text) - _STEP or error.msg.startswith("Unterminated"))
    except (ValueError, RecursionError):
        return False
    return True


_PICKLE = _matches(rb"\x80[\x02-\x05][}\](\x95cX]")
_SPACE = rb"(?:\xef\xbb\xbf)?\s*"
_LINE = rb"(?!\s*[{\[])[^\n]*"  # the first one of a text that is no JSON
_UNPACK = "unpack it and give the trace inside"
_NO_TIMELINE = f"no timeline; {READS}"

FORMATS: tuple[Format, ...] = (
    Format("empty", "an empty file", lambda head: not head),
    Format(
        "git-lfs",
        "a Git LFS pointer, not the file itself",
        _starts(b"version https://git-lfs"),
        "fetch the content with `git lfs pull`",
    ),
    Format(
        "html",
        "an HTML page",
        _matches(_SPACE + rb"<(?:!doctype html|html|head|body)\b"),
        "the download went wrong: fetch the file itself",
    ),
    Format("xml", "an XML document", _matches(_SPACE + rb"<\?xml\b")),
    Format(
        "nsys-report",
        "an Nsight Systems report",
        _starts(b"NVIDIA Tegra Profiler Report", b"QDSTRM"),
        "export it first: nsys export --type sqlite FILE",
    ),
    Format(
        "nsys-sqlite",
        "an Nsight Systems export (SQLite)",
        _all_of(_starts(b"SQLite format 3\0"), _holds(b"CUPTI_", b"StringIds", b"TARGET_INFO")),
        reader="tracer.collectors.nsys.trace:read_nsys",
        ranks="tracer.collectors.nsys.trace:ranks_in",
    ),
    Format(
        "rocpd",
        "a database of rocprofv3 (rocpd)",
        _all_of(_starts(b"SQLite format 3\0"), _holds(b"rocpd_")),
        "convert it first: rocpd convert -i FILE --output-format csv",
    ),
    Format(
        "sqlite",
        "an SQLite database without the tables of Nsight Systems (StringIds, CUPTI_ACTIVITY_…)",
        _starts(b"SQLite format 3\0"),
        "export the report with nsys export --type sqlite FILE",
    ),
    Format(
        "memory-snapshot",
        "a pickled memory snapshot",
        _all_of(_PICKLE, _holds(b"segments", b"device_traces")),
        _NO_TIMELINE,
    ),
    Format(
        "flight-recorder",
        "a flight-recorder dump",
        _all_of(_PICKLE, _holds(b"pg_config", b"nccl_version", b"comm_lib_version")),
        "it is read with its ranks: give its directory to `tracer ranks`",
    ),
    Format("pickle", "a Python pickle, which is never loaded", _PICKLE),
    Format("zip", "a zip archive", _starts(b"PK\x03\x04", b"PK\x05\x06"), _UNPACK),
    Format("tar", "a tar archive", _at(257, b"ustar"), _UNPACK),
    Format("zstd", "compressed with zstd", _starts(b"\x28\xb5\x2f\xfd"), "unpack it: unzstd FILE"),
    Format("xz", "compressed with xz", _starts(b"\xfd7zXZ\0"), "unpack it: unxz FILE"),
    Format("bzip2", "compressed with bzip2", _matches(rb"BZh[1-9]"), "unpack it: bunzip2 FILE"),
    Format("gzip", "compressed twice with gzip", _starts(_GZIP), "unpack it once: gunzip FILE"),
    Format("parquet", "a Parquet table", _starts(b"PAR1"), "give the directory of the saved run"),
    Format(
        "utf-16",
        "text in UTF-16",
        _starts(b"\xff\xfe", b"\xfe\xff"),
        "save it as UTF-8: iconv -f UTF-16 -t UTF-8",
    ),
    Format("binary", "a binary file", _is_binary),
    Format(
        "rocprof-json",
        "a rocprofv3 JSON",
        _matches(_SPACE + rb'\{\s*"rocprofiler-sdk-tool"'),
        reader="tracer.collectors.rocprof.read_json:read_rocprof_json",
        ranks="tracer.collectors.rocprof.read_json:ranks_in",
    ),
    Format(
        "rocprof-csv",
        "a rocprofv3 CSV",
        _any_of(
            _all_of(
                _matches(_LINE + rb"\bStart_Timestamp\b"),
                _matches(_LINE + rb"\bEnd_Timestamp\b"),
                _matches(_LINE + rb"\b(?:Kernel_Name|Function|Direction|Operation)\b"),
            ),
            _all_of(_matches(_LINE + rb"\bNode_Id\b"), _matches(_LINE + rb"\bAgent_Type\b")),
        ),
        reader="tracer.collectors.rocprof.read_csv:read_rocprof_csv",
    ),
    Format(
        "execution-trace",
        "a PyTorch execution trace (operators and tensors, no times on the device)",
        _all_of(
            _matches(_SPACE + rb'\{\s*"schema"\s*:\s*"'),
            _holds(b'"nodes"'),
            lambda head: b'"traceEvents"' not in head,
        ),
        "give the profiler's trace of the same run",
    ),
    Format(
        "memory-timeline",
        "a memory timeline (a list of allocations)",
        _matches(_SPACE + rb"\[\s*\[\s*-?\d"),
        _NO_TIMELINE,
    ),
    Format(
        "torch-trace",
        "a TORCH_TRACE log of the compiler (JSON lines)",
        _matches(rb'(?:[VIWE]\d{4} [^\n]*\{|\{"[^\n]*\}\r?\n\{")'),
        _NO_TIMELINE,
    ),
    Format(
        "perfetto-export",
        "what `tracer export --to perfetto` wrote",
        _matches(_SPACE + rb'\{\s*"tracer"\s*:'),
        "report the recording that it was made of",
    ),
    Format(
        "kineto",
        "a PyTorch profiler trace",
        _matches(_SPACE + rb"(?:\{|\[\s*(?:\{|\]?\s*$))"),
        reader="tracer.collectors.kineto.trace:read_kineto",
        sure=_holds(b'"traceEvents"', b'"ph"'),
    ),
    Format(
        "nccl-log",
        "a log of NCCL",
        _holds(b" NCCL INFO ", b" NCCL WARN ", b" RCCL INFO "),
        "it is read with its ranks: give its directory to `tracer ranks`",
    ),
    Format("json", "JSON without a list of events (traceEvents)", _is_json),
    Format("csv", "a table of comma-separated values", _matches(rb'[^\n]*"?,"?[^\n]*,[^\n]*\n')),
    Format("text", "no JSON", lambda _head: True),
)


def sniff(path: str | PathLike[str]) -> Format:
    """The format of a file, gzipped or not. Raises what a user must know when it cannot be read."""
    return _format_of(read_head(path))


def is_surely_recording(path: str | PathLike[str]) -> bool:
    """Whether a file that nobody named is one; False also where it cannot be read."""
    try:
        head = read_head(path)
    except TracerError:
        return False
    known = _format_of(head)
    return known.reader is not None and known.sure(head)


def _format_of(head: bytes) -> Format:
    return next(known for known in FORMATS if known.test(head))


def read_head(path: str | PathLike[str]) -> bytes:
    """The first bytes of the file's content, unpacked when it is gzipped."""
    path, _ = split_rank(path)
    try:
        if Path(path).is_dir():
            raise NotATraceError(f"{path}: a directory; give a file in it")
        if Path(path).exists() and not Path(path).is_file():
            raise InputError(f"{path}: no regular file; save its content to one and give that")
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable(path, error) from None
    return _unzipped(path, head) if head.startswith(_GZIP) else head


def unreadable(path: str | PathLike[str], error: OSError) -> InputError:
    """The error for a file that the system does not give us."""
    if isinstance(error, FileNotFoundError):
        return absent(Path(path))
    if isinstance(error, PermissionError):
        return InputError(f"{path}: no permission to read it")
    return InputError(f"{path}: cannot be read ({error.strerror or error})")


def _unzipped(path: str | PathLike[str], head: bytes) -> bytes:
    """What the beginning holds, up to where it is damaged."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    text = bytearray()
    try:
        for begin in range(0, len(head), _STEP):
            text += unpacker.decompress(head[begin : begin + _STEP], HEAD_BYTES)
            if unpacker.eof or len(text) >= HEAD_BYTES:
                break
    except zlib.error as error:
        if not text:
            raise InputError(f"{path}: gzip data that cannot be unpacked ({error})") from None
    return bytes(text)

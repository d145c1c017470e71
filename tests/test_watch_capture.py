"""`tracer watch --capture`: the engine is asked to profile itself, and its files are reported."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tests.serving_pages import PlayedServer, Reply, page, vllm_page
from tests.test_cli import kineto_events, write_trace
from tracer import cli
from tracer.collectors.serving.capture import capture
from tracer.collectors.serving.engines import engines
from tracer.collectors.serving.http import parse_url
from tracer.collectors.serving.new_files import is_complete, list_recordings, wait_for_new
from tracer.commands import watch_capture
from tracer.errors import CaptureError
from tracer.exporters import watch_json

Capture = pytest.CaptureFixture[str]
Pages = dict[str, Sequence[Reply | str]]
OK = Reply("", 200)
VLLM: Pages = {"/metrics": [vllm_page(), vllm_page(tokens=9, ended=1)]}
CAPTURING: Pages = {"/start_profile": [OK], "/stop_profile": [OK]}
SGLANG: Pages = {"/metrics": [page({"sglang:num_running_reqs": 1})]}
QUICK = ("--seconds", "0.02", "--interval", "0.02", "--width", "100")


class Engine(PlayedServer):
    """A server that writes files when its capture is stopped."""

    def __init__(
        self,
        replies: Mapping[str, Sequence[Reply | str]],
        write: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(replies)
        self.write = write

    def take(self, method: str, path: str, body: bytes) -> Reply:
        if path == "/stop_profile":
            self.write()
        return super().take(method, path, body)

    @property
    def posted(self) -> list[str]:
        """Where it was asked for more than metrics, in order."""
        return [path for method, path, _ in self.asked if method == "POST"]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files settle at once."""
    monkeypatch.setattr("tracer.collectors.serving.new_files.POLL_S", 0.01)
    monkeypatch.setattr(watch_capture, "WAIT_LIMIT_S", 0.2)


@pytest.mark.parametrize("words", [("--capture", "0.01", "URL"), ("URL", "--capture", "0.01")])
def test_a_capture_is_reported_below_the_metrics(
    words: Sequence[str], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "old.json").write_text("{}")
    with Engine(VLLM | CAPTURING, lambda: write_trace(tmp_path / "new.json.gz")) as engine:
        options = [engine.url if word == "URL" else word for word in words]
        assert cli.main(["watch", *options, *QUICK, "--traces", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    metrics, _, report = out.partition("new.json.gz")
    assert "· vLLM ·" in metrics
    assert "Test GPU" in report
    assert "old.json" not in out + err
    assert engine.posted == ["/start_profile", "/stop_profile"]


def test_where_the_engine_writes_is_said(capsys: Capture) -> None:
    with Engine(VLLM | CAPTURING) as engine:
        assert cli.main(["watch", engine.url, *QUICK, "--capture", "0.01"]) == 0
    assert (
        "vLLM writes to the torch_profiler_dir that it was started with" in capsys.readouterr().err
    )


def test_a_url_behind_capture_is_the_url(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("tracer.commands.watch.DEFAULT_CAPTURE_S", 0.01)
    with Engine(VLLM | CAPTURING) as engine:
        assert cli.main(["watch", *QUICK, "--capture", engine.url]) == 0
    assert engine.posted == ["/start_profile", "/stop_profile"]


def test_sglang_is_told_the_directory_where_it_is_on_this_machine(
    tmp_path: Path, capsys: Capture
) -> None:
    with Engine(SGLANG | CAPTURING, lambda: write_trace(tmp_path / "a-TP-0.json.gz")) as engine:
        options = (*QUICK, "--capture", "0.01", "--traces", str(tmp_path), "--json")
        assert cli.main(["watch", engine.url, *options]) == 0
    bodies = [json.loads(body) for _, path, body in engine.asked if path == "/start_profile"]
    assert bodies == [{"output_dir": str(tmp_path.resolve())}]
    document = json.loads(capsys.readouterr().out)
    schema = Path(watch_json.__file__).with_name("watch.schema.json")
    Draft202012Validator(json.loads(schema.read_text())).validate(document)
    made = document["capture"]
    assert made["files"] == [str(tmp_path / "a-TP-0.json.gz")]
    assert made["report"]["schema"] == "tracer.report/1"
    assert made["failure"] is None


REFUSALS: list[tuple[Pages, str]] = [
    (VLLM, "vLLM takes no capture .*HTTP 404.*start it with --profiler-config"),
    (SGLANG, "SGLang takes no capture .*SGLANG_TORCH_PROFILER_DIR"),
    (VLLM | {"/start_profile": [Reply("in progress", 400)]}, "refused the capture: .*in progress"),
    ({"/metrics": [page({"tgi_queue_size": 1})]}, "TGI takes no capture over HTTP"),
]


@pytest.mark.parametrize(("replies", "said"), REFUSALS)
def test_a_refusal_is_one_line_and_the_metrics_stand(
    replies: Mapping[str, Sequence[Reply | str]], said: str, capsys: Capture
) -> None:
    with Engine(replies) as engine:
        assert cli.main(["watch", engine.url, *QUICK, "--capture"]) == 4
    out, err = capsys.readouterr()
    assert "LOAD" in out
    assert re.search(said, err.splitlines()[-1])
    # Somebody else's capture goes on.
    assert "/stop_profile" not in engine.posted


def test_no_file_is_said(tmp_path: Path, capsys: Capture) -> None:
    with Engine(VLLM | CAPTURING) as engine:
        options = (*QUICK, "--capture", "0.01", "--traces", str(tmp_path))
        assert cli.main(["watch", engine.url, *options]) == 4
    assert "no recording came in" in capsys.readouterr().err.splitlines()[-1]


def test_a_file_that_is_not_complete_is_left_out(tmp_path: Path, capsys: Capture) -> None:
    whole = gzip.compress(json.dumps({"traceEvents": kineto_events()}).encode())
    with Engine(
        VLLM | CAPTURING, lambda: (tmp_path / "a.json.gz").write_bytes(whole[:-30])
    ) as engine:
        options = (*QUICK, "--capture", "0.01", "--traces", str(tmp_path))
        assert cli.main(["watch", engine.url, *options]) == 4
    assert "a.json.gz: not complete after" in capsys.readouterr().err


def test_what_was_started_is_stopped_when_interrupted() -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    vllm = next(engine for engine in engines() if engine.key == "vllm")
    with Engine(CAPTURING) as engine, pytest.raises(KeyboardInterrupt):
        capture(parse_url(engine.url), vllm, 5, 5, interrupted)
    assert engine.posted == ["/start_profile", "/stop_profile"]


def test_a_program_that_is_ended_stops_its_capture_first(capsys: Capture) -> None:
    with Engine(VLLM | CAPTURING) as engine:

        def end() -> None:
            while "/start_profile" not in engine.posted:
                time.sleep(0.01)
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGTERM)

        ending = threading.Thread(target=end)
        ending.start()
        assert cli.main(["watch", engine.url, *QUICK, "--capture", "60"]) == cli.INTERRUPTED
        ending.join()
    assert engine.posted == ["/start_profile", "/stop_profile"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_engine_without_requests_may_capture_nothing(capsys: Capture) -> None:
    idle: Pages = {"/metrics": [vllm_page(), vllm_page(running=0, tokens=9, ended=1)]}
    with Engine(idle | CAPTURING) as engine:
        assert cli.main(["watch", engine.url, *QUICK, "--capture", "0.01"]) == 0
    assert "nothing runs now: the capture may hold no step" in capsys.readouterr().err


def test_a_capture_that_does_not_end_is_an_error() -> None:
    vllm = next(engine for engine in engines() if engine.key == "vllm")
    replies: Pages = {"/start_profile": [OK], "/stop_profile": [Reply("disk full", 500)]}
    with Engine(replies) as engine, pytest.raises(CaptureError, match=r"did not end .*disk full"):
        capture(parse_url(engine.url), vllm, 0.01, 5, time.sleep)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give the URL of a server"),
        (("http://host", "--traces", "."), "add --capture"),
        (("http://host", "--capture", "0"), "a number of seconds above 0"),
        (("http://host", "--capture", "soon"), "a number of seconds above 0"),
        (("http://host", "--capture", "--traces", "/not/there"), "no such directory"),
    ],
)
def test_wrong_usage(options: Sequence[str], said: str, capsys: Capture) -> None:
    assert cli.main(["watch", *options]) == 2
    assert said in capsys.readouterr().err


def test_files_are_waited_for_until_they_are_whole(tmp_path: Path) -> None:
    """A rank that is slower than the others, and a file that grows."""
    before = list_recordings(tmp_path)
    data = gzip.compress(json.dumps({"traceEvents": kineto_events()}).encode())
    (tmp_path / "rank0.json.gz").write_bytes(data[:40])
    begun = threading.Event()
    polls: list[float] = []

    def sleep(seconds: float) -> None:
        polls.append(seconds)
        if len(polls) == 5:
            (tmp_path / "rank0.json.gz").write_bytes(data)
            (tmp_path / "rank1.json").write_text("[1,")
        elif len(polls) == 8:
            (tmp_path / "rank1.json").write_text("[1]\n")
            begun.set()

    whole, cut = wait_for_new(tmp_path, before, 1, sleep)
    assert begun.is_set()
    assert [path.name for path in whole] == ["rank0.json.gz", "rank1.json"]
    assert cut == []


def test_complete_files(tmp_path: Path) -> None:
    data = gzip.compress(b'{"a": 1}')
    contents = {"a.json.gz": data, "b.json.gz": data[:-9], "c.json": b"{}", "d.json": b'{"a": [1'}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "e.json.gz").write_bytes(b"no gzip at all")
    found = {name: is_complete(tmp_path / name) for name in (*contents, "e.json.gz", "gone.json")}
    assert found == {
        "a.json.gz": True,
        "b.json.gz": False,
        "c.json": True,
        "d.json": False,
        "e.json.gz": False,
        "gone.json": False,
    }

"""`trace()`: what it records, what it refuses, and that the traced program always wins."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from tests.live_models import OwnModel, decoder, prompt
from tracer import trace
from tracer.collectors import torch_profiler
from tracer.errors import UsageError
from tracer.events import Note, Trace
from tracer.live.options import Detail, Limits
from tracer.recorder import Recording

DETAILS: tuple[Detail, ...] = ("light", "kernels", "modules", "full")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def model() -> nn.Module:
    return OwnModel()


def work(model: nn.Module, times: int = 3) -> None:
    with torch.no_grad():
        for _ in range(times):
            model(prompt())


def operators(recorded: Trace) -> int:
    return int(recorded.rows("operator").size)


def rules(recorded: Trace) -> list[str]:
    """What is amiss: that light records no kernels is none."""
    named = (note.rule for note in recorded.notes)
    return [rule for rule in named if rule.startswith("capture.") and rule != "capture.light"]


def note_of(recorded: Trace, rule: str) -> Note:
    return next(note for note in recorded.notes if note.rule == rule)


# What is recorded


@pytest.mark.parametrize("detail", DETAILS)
def test_every_detail_finds_the_steps_by_itself(model: nn.Module, detail: Detail) -> None:
    with trace(detail=detail) as t:
        work(model)
    assert len(t.trace.table("root_calls")) == 3
    assert len(t.analysis.steps) == 3
    assert t.trace.meta.detail == detail
    assert t.trace.meta.source_kind == "live"


def test_what_each_detail_records(model: nn.Module) -> None:
    seen = {}
    for detail in DETAILS:
        with trace(detail=detail) as t:
            work(model, 1)
        kinds = t.trace.events["kind"].value_counts()
        seen[detail] = (
            bool(kinds["operator"]),
            bool(kinds["module"]),
            bool(kinds["frame"]),
            bool(len(t.trace.table("shapes"))),
            bool(kinds["memory"]),
        )
    assert seen == {
        "light": (False, True, False, False, False),
        "kernels": (True, False, False, False, False),
        "modules": (True, True, False, False, False),
        "full": (True, True, True, True, True),
    }


def test_two_traces_in_a_row_are_independent(model: nn.Module) -> None:
    with trace() as first:
        work(model, 2)
    with trace() as second:
        work(model, 3)
    assert len(first.trace.table("root_calls")) == 2
    assert len(second.trace.table("root_calls")) == 3


def test_one_recording_used_twice_holds_the_last(model: nn.Module) -> None:
    t = trace()
    for times in (1, 2):
        with t:
            work(model, times)
        assert len(t.trace.table("root_calls")) == times


def test_work_of_other_threads_is_recorded(model: nn.Module) -> None:
    with trace() as t:
        thread = threading.Thread(target=work, args=(model,))
        thread.start()
        thread.join()
    assert operators(t.trace) > 0
    assert len(t.analysis.steps) == 3


def test_an_empty_block_gives_an_empty_trace() -> None:
    with trace() as t:
        pass
    assert operators(t.trace) == 0


def test_facts_and_modules_of_the_run(model: nn.Module) -> None:
    with trace(model) as t:
        work(model)
    facts = t.trace.meta.facts
    assert facts["dtypes"] == {"float32": sum(p.numel() for p in model.parameters())}
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["models"][0]["type"] == "OwnModel"
    table = t.trace.table("model_modules").set_index("path")
    assert table.loc["embedding", "parameters"] == model.get_parameter("embedding.weight").numel()
    assert table.loc["embedding", "dtype"] == "float32"
    assert table.loc["layers.0.attention", "parameters"] == 0
    code = OwnModel.forward.__code__
    assert tuple(table.loc["", ["file", "line"]]) == (code.co_filename, code.co_firstlineno)


def test_the_choices_of_a_model_that_another_holds_are_known() -> None:
    """As of one that LoRA was put around: what is called first has no configuration."""
    with trace(detail="light") as t, torch.no_grad():
        nn.Sequential(decoder("llama"))(prompt())
    assert t.trace.meta.facts["attention_implementation"] == "sdpa"
    assert t.trace.meta.facts["models"][0]["num_hidden_layers"] > 0
    assert "attention sdpa (asked for: sdpa or nothing)" in str(t.report)


def test_a_model_that_is_freed_inside_the_block_is_freed() -> None:
    import weakref

    with trace() as t:
        model = OwnModel()
        work(model, 1)
        reference = weakref.ref(model)
        del model
        gc.collect()
        assert reference() is None
    table = t.trace.table("model_modules")
    assert list(table["path"][:3]) == ["", "embedding", "layers"]
    assert table["parameters"].sum() == t.trace.meta.facts["models"][0]["parameters"] > 0
    assert list(t.trace.meta.facts["dtypes"]) == ["float32"]


def test_collections_are_recorded_where_they_happen(model: nn.Module) -> None:
    gc.disable()
    try:
        with trace(detail="light") as quiet:
            work(model)
        with trace(detail="light") as noisy:
            work(model)
            gc.collect()
    finally:
        gc.enable()
    assert len(quiet.trace.table("collections")) == 0
    table = noisy.trace.table("collections")
    assert list(table["generation"]) == [2]
    assert int(table["end_ns"].iloc[0]) > int(table["start_ns"].iloc[0])


# The report


def test_report_as_text_page_and_document(model: nn.Module) -> None:
    with trace() as t:
        work(model)
    text = str(t.report)
    assert "forward" in text or "prefill" in text
    assert t.report["schema"] == "tracer.report/1"
    assert t.report["source"]["kind"] == "live"
    assert t.report._repr_html_().lstrip().startswith("<")
    assert "<html" in t.report.html()


def test_the_report_has_to_wait_for_the_end(model: nn.Module) -> None:
    t = trace()
    with pytest.raises(UsageError, match="nothing was traced yet"):
        _ = t.report
    with t:
        with pytest.raises(UsageError, match="still runs"):
            _ = t.report
        with pytest.raises(UsageError, match="already running"):
            t.__enter__()
    with pytest.raises(UsageError, match=r"t\.step\(\) is for the program inside"):
        t.step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"detail": "everything"}, "choose one of light, kernels, modules, full"),
        ({"schedule": 3}, r"torch\.profiler\.schedule"),
        ({"schedule": schedule(wait=0, warmup=1, active=1), "detail": "light"}, "no profiler"),
        ({"model": print}, r"write @trace\(\)"),
        ({"limits": {"minutes": 3}}, "known are seconds, free_memory_ratio"),
    ],
)
def test_a_wrong_call_says_what_to_do(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace(**arguments).__enter__()


def test_out_saves_the_run(model: nn.Module, tmp_path: Path) -> None:
    with trace(out=tmp_path / "run") as t:
        work(model)
    from tracer.store import load_run

    loaded = load_run(tmp_path / "run")
    assert len(loaded.events) == len(t.trace.events)
    assert len(loaded.table("root_calls")) == 3


def test_a_run_of_another_is_kept_and_said_once(
    model: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tracer.store import load_run

    target = tmp_path / "run"
    with trace(out=target):
        work(model, 1)
    assert not caplog.messages
    t = trace(out=target)
    for times in (2, 3):
        with t:
            work(model, times)
    t.save(target)
    kept = tmp_path / ".old" / "run"
    assert caplog.messages == [f"tracer: the run that was there is kept as {kept}"]
    assert len(load_run(kept).table("root_calls")) == 1
    assert len(load_run(target).table("root_calls")) == 3


# Functions


def test_a_function() -> None:
    @trace()
    def compute(model: nn.Module, *, times: int) -> str:
        work(model, times)
        return "done"

    assert compute(OwnModel(), times=2) == "done"
    recording: Recording = compute.recording  # type: ignore[attr-defined]
    assert len(recording.trace.table("root_calls")) == 2
    assert compute.__name__ == "compute"


def test_a_function_that_calls_itself_is_one_recording() -> None:
    model = OwnModel()

    @trace()
    def compute(depth: int) -> None:
        work(model, 1)
        if depth:
            compute(depth - 1)

    compute(2)
    assert len(compute.recording.trace.table("root_calls")) == 3  # type: ignore[attr-defined]


def test_generators_and_coroutines() -> None:
    model = OwnModel()

    @trace()
    def generate() -> Iterator[int]:
        for i in range(3):
            work(model, 1)
            yield i

    @trace()
    async def serve() -> int:
        work(model, 2)
        await asyncio.sleep(0)
        return 5

    assert list(generate()) == [0, 1, 2]
    assert len(generate.recording.trace.table("root_calls")) == 3  # type: ignore[attr-defined]
    assert asyncio.run(serve()) == 5
    assert len(serve.recording.trace.table("root_calls")) == 2  # type: ignore[attr-defined]


def test_a_generator_that_is_not_read_to_its_end_did_not_fail() -> None:
    model = OwnModel()

    @trace()
    def generate() -> Iterator[int]:
        for i in range(3):
            work(model, 1)
            yield i

    iterator = generate()
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert rules(generate.recording.trace) == []  # type: ignore[attr-defined]


# Steps that the program announces


def test_blocks_are_steps(model: nn.Module) -> None:
    with trace() as t:
        work(model, 1)
        for phase in ("prefill", "decode", "decode"):
            with t.step(phase):
                work(model, 2)
    assert list(t.trace.table("announced_steps")["name"]) == ["prefill", "decode", "decode"]
    assert list(t.analysis.steps["phase"]) == ["prefill", "decode", "decode"]
    assert set(t.analysis.steps["source"]) == {"announced"}


@pytest.mark.parametrize("first", [True, False], ids=["at the beginning", "at the end"])
@pytest.mark.parametrize("detail", ["modules", "light"])
def test_bare_calls_are_steps_wherever_the_loop_makes_them(
    model: nn.Module, first: bool, detail: Detail
) -> None:
    with trace(detail=detail) as t:
        for _ in range(4):
            if first:
                t.step()
            work(model, 1)
            if not first:
                t.step()
    assert len(t.analysis.steps) == 4


def test_a_step_inside_a_step_belongs_to_it(model: nn.Module) -> None:
    with trace() as t, t.step("whole"):
        work(model, 1)
        t.step("part")
        with t.step("part"):
            work(model, 1)
    assert list(t.trace.table("announced_steps")["name"]) == ["whole"]
    assert note_of(t.trace, "capture.nested_steps").count == 2


# Case 32: somebody else records already


def test_inside_a_profiler_we_step_back(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as theirs, trace() as t:
        work(model)
        t.step()
    assert len(theirs.events()) > 0
    assert rules(t.trace) == ["capture.busy"]
    assert "another profiler of torch" in note_of(t.trace, "capture.busy").message
    assert [r.levelname for r in caplog.records if "capture.busy" in r.message] == ["WARNING"]
    assert "capture.busy" in str(t.report)
    assert t.report["integrity"]["status"] != "complete"


def test_a_profiler_inside_the_trace_gets_its_result(model: nn.Module) -> None:
    with trace() as t:
        work(model, 2)
        with profile(activities=[ProfilerActivity.CPU]) as theirs:
            work(model, 1)
        work(model, 1)
    assert len(theirs.events()) > 0
    assert rules(t.trace) == ["capture.busy"]
    assert len(t.trace.table("root_calls")) == 2  # what came before it is kept
    assert operators(t.trace) > 0


def test_light_and_a_profiler_do_not_disturb_each_other(model: nn.Module) -> None:
    with trace(detail="light") as t:
        with profile(activities=[ProfilerActivity.CPU], with_stack=True) as theirs:
            work(model, 2)
        work(model, 1)
    assert len(theirs.events()) > 0
    assert rules(t.trace) == []
    assert len(t.trace.table("root_calls")) == 3


def test_a_second_trace_in_another_thread_is_refused(model: nn.Module) -> None:
    others = []

    def other() -> None:
        with trace() as second:
            work(model, 1)
        others.append(second)

    with trace() as t:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert rules(t.trace) == []
    assert len(t.trace.table("root_calls")) == 1
    assert rules(others[0].trace) == ["capture.busy"]
    assert "test_trace.py" in note_of(others[0].trace, "capture.busy").message
    work_after = trace()
    with work_after:
        work(model, 1)
    assert rules(work_after.trace) == []


# Case 33: a schedule


def scheduled(model: nn.Module, steps: int, *, blocks: bool = False) -> Recording:
    with trace(schedule=schedule(wait=1, warmup=1, active=3)) as t:
        for _ in range(steps):
            if blocks:
                with t.step():
                    work(model, 1)
            else:
                work(model, 1)
                t.step()
        if not steps:
            work(model, 3)
    return t


def test_the_settings_of_the_profiler_are_laid_out_only_where_it_acts(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each step of a long wait would pay for files that nobody reads."""
    laid_out, original = list[bool](), torch_profiler._quiet_environment

    def counted(gpu: bool) -> Any:
        laid_out.append(gpu)
        return original(gpu)

    monkeypatch.setattr(torch_profiler, "_quiet_environment", counted)
    after = []
    with trace(schedule=schedule(wait=5, warmup=1, active=4)) as t:
        for _ in range(10):
            work(model, 1)
            t.step()
            after.append(len(laid_out))
    # Begun; then only for warm-up, recording, its last step and its end.
    assert after == [1, 1, 1, 1, 2, 3, 3, 3, 4, 6]
    assert len(t.analysis.steps) == 4


def test_a_schedule_without_steps_says_so(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    t = scheduled(model, 0)
    note = note_of(t.trace, "capture.no_steps")
    assert note.message == "0 of 3 steps recorded, step() was never called"
    assert note.detail == {"recorded": 0, "active": 3}
    assert "step() was never called" in caplog.text
    assert "capture.no_steps" in str(t.report)


@pytest.mark.parametrize("blocks", [True, False])
def test_a_schedule_that_is_cut_off_marks_the_partial_step(model: nn.Module, blocks: bool) -> None:
    t = scheduled(model, 3, blocks=blocks)
    note = note_of(t.trace, "capture.no_steps")
    assert note.message.startswith("1 of 3 active steps recorded")
    assert note.detail["partial_step"] == 3
    assert note.partial
    assert len(t.trace.table("announced_steps")) == 1


@pytest.mark.parametrize("blocks", [True, False])
def test_a_schedule_records_its_steps_and_stops(model: nn.Module, blocks: bool) -> None:
    t = scheduled(model, 50, blocks=blocks)
    assert rules(t.trace) == []
    assert len(t.analysis.steps) == 3
    assert len(t.trace.table("root_calls")) == 3
    assert len(t.trace.table("unprofiled_steps")) == 1


def test_a_schedule_that_never_records_is_no_error(model: nn.Module) -> None:
    from torch.profiler import ProfilerAction

    with trace(schedule=lambda step: ProfilerAction.NONE) as t:
        work(model, 1)
        t.step()
    assert operators(t.trace) == 0


# Case 34: exceptions and exits


@pytest.mark.parametrize("detail", DETAILS)
@pytest.mark.parametrize(
    "error",
    [ValueError("x"), KeyboardInterrupt(), SystemExit(3), torch.OutOfMemoryError("CUDA")],
    ids=lambda error: type(error).__name__,
)
def test_what_leaves_the_block_is_unchanged(
    model: nn.Module, error: BaseException, detail: Detail
) -> None:
    t = trace(detail=detail)
    with pytest.raises(type(error)) as raised, t:
        work(model, 3)
        raise error
    assert raised.value is error
    assert error.__context__ is None
    assert len(t.trace.table("root_calls")) == 3
    note = note_of(t.trace, "capture.interrupted")
    assert note.detail["exception"] == type(error).__name__
    assert t.report["integrity"]["status"] == "partial"
    with trace(detail=detail) as again:
        work(model, 1)
    assert rules(again.trace) in ([], ["capture.cpu_only"])


def test_an_exception_inside_a_module_keeps_its_traceback(model: nn.Module) -> None:
    with pytest.raises(IndexError) as raised, trace():
        model(prompt() + 10_000)
    names = [entry.name for entry in raised.traceback]
    assert names[-1] == "embedding"
    assert raised.value.__context__ is None


def test_an_interrupted_run_is_saved(model: nn.Module, tmp_path: Path) -> None:
    from tracer.store import load_run

    with pytest.raises(ValueError, match="mine"), trace(out=tmp_path / "run"):
        work(model, 2)
        raise ValueError("mine")
    assert rules(load_run(tmp_path / "run")) == ["capture.interrupted"]


# The tracer itself fails


def test_a_failure_to_save_is_only_a_warning(
    model: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ValueError, match="mine"), trace(out=blocked / "run"):
        work(model, 1)
        raise ValueError("mine")
    assert "capture.failed: saving the run to" in caplog.text


def test_a_profiler_that_cannot_start_leaves_the_steps(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise RuntimeError("no profiler today")

    monkeypatch.setattr(profile, "__enter__", fail)
    with trace() as t:
        work(model)
    assert rules(t.trace) == ["capture.failed"]
    assert "no profiler today" in note_of(t.trace, "capture.failed").message
    assert len(t.trace.table("root_calls")) == 3


def test_a_device_that_fails_at_the_end_leaves_the_recording(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the device comes before the profiler's own end, and raises after a fault."""
    import torch.autograd.profiler as inner

    def fail(self: object, *error: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with trace() as t:
        work(model)
        monkeypatch.setattr(inner.profile, "__exit__", fail)
    monkeypatch.undo()
    assert rules(t.trace) == ["capture.failed"]
    assert operators(t.trace) > 0


def test_a_failure_in_our_hook_is_not_the_programs(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracer.collectors.modules.root_calls import RootCalls

    def fail(self: object, *args: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(RootCalls, "begin", fail)
    with trace() as t:
        work(model)
    assert rules(t.trace) == ["capture.failed"]
    assert operators(t.trace) > 0


def test_warnings_as_errors_do_not_reach_the_program(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with profile(activities=[ProfilerActivity.CPU]), trace():
            work(model, 1)
        with trace(detail="full", schedule=schedule(wait=0, warmup=1, active=1)) as t:
            for _ in range(4):
                work(model, 1)
                t.step()


def test_a_limit_ends_the_recording_and_not_the_program(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tracer.live.capture as capture

    with trace(limits=Limits(seconds=0.0)) as t:
        monkeypatch.setattr(capture.Capture, "_look_at_limits", _looking_always())
        work(model, 3)
    assert rules(t.trace) == ["capture.limit"]
    assert len(t.trace.table("root_calls")) == 1
    (note,) = t.trace.notes
    assert note.partial and note.detail["calls_after"] == 2


def test_a_file_that_cannot_be_read_is_kept(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tracer.collectors.kineto.trace as kineto

    def fail(path: Path) -> Trace:
        raise KeyError("a key that is not there")

    with trace() as t:
        work(model, 2)
    with monkeypatch.context() as patches:
        patches.setattr(kineto, "read_kineto", fail)
        assert len(t.trace.table("root_calls")) == 2
    assert rules(t.trace) == ["capture.failed", "capture.file_kept"]
    kept = Path(t.trace.notes[-1].detail["path"])
    assert len(kineto.read_kineto(kept).rows("module")) > 0
    shutil.rmtree(kept.parent)


def _looking_always() -> Any:
    import tracer.live.capture as capture

    look = capture.Capture._look_at_limits

    def looking(self: Any, now_ns: int) -> None:
        self._next_look_ns = 0
        look(self, now_ns)

    return looking


# Case 35: the work is elsewhere


def child_work() -> None:
    torch.ones(8) + 1


def test_work_in_children_is_said_to_be_there() -> None:
    context = multiprocessing.get_context("spawn")
    with trace() as t:
        child = context.Process(target=child_work)
        child.start()
        pid = child.pid
        child.join()
    note = note_of(t.trace, "capture.no_gpu_work_here")
    assert note.detail == {"launches": 0, "pids": [pid]}
    assert str(pid) in note.message
    assert "with trace()" in note.message


def test_children_of_a_program_that_works_itself_are_no_finding(model: nn.Module) -> None:
    with trace() as t:
        work(model)
        subprocess.run([sys.executable, "-c", ""], check=True)
    assert rules(t.trace) == []


def test_a_forked_child_is_not_traced(model: nn.Module) -> None:
    context = multiprocessing.get_context("fork")
    with trace(detail="light") as t:
        work(model, 1)
        child = context.Process(target=work, args=(model, 3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of earlier tests
            child.start()
        child.join()
    assert child.exitcode == 0
    assert len(t.trace.table("root_calls")) == 1


# Nothing stays


def test_the_environment_is_left_alone(model: nn.Module) -> None:
    import os

    before = dict(os.environ)
    with trace(detail="full"):
        work(model, 1)
    assert dict(os.environ) == before


def test_no_handler_is_added_to_any_logger(model: nn.Module) -> None:
    before = {name: logging.getLogger(name).handlers[:] for name in ("", "torch", "tracer")}
    with trace():
        work(model, 1)
    assert {name: logging.getLogger(name).handlers[:] for name in before} == before


def test_temporary_files_are_deleted(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with trace() as t:
        work(model, 1)
    assert operators(t.trace) > 0
    assert list(tmp_path.iterdir()) == []


def test_importing_tracer_loads_neither_torch_nor_pandas() -> None:
    code = "import sys, tracer; from tracer import trace; print([m for m in ('torch', 'pandas', "
    code += "'textual', 'opentelemetry') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_full_says_that_it_records_one_thread(model: nn.Module) -> None:
    with trace(detail="full") as t:
        work(model, 1)
        thread = threading.Thread(target=work, args=(model,))
        thread.start()
        thread.join()
    assert rules(t.trace) == ["capture.threads_not_recorded"]


def test_full_records_all_threads_and_no_memory_where_there_are_others(model: nn.Module) -> None:
    begin, end = threading.Event(), threading.Event()

    def serve() -> None:
        begin.wait(60)
        work(model, 1)
        end.set()

    thread = threading.Thread(target=serve)
    thread.start()
    with trace(detail="full") as t:
        begin.set()
        assert end.wait(60)
    thread.join()
    assert rules(t.trace) == []
    assert operators(t.trace) > 0
    assert t.trace.meta.recorded["stacks"]
    assert not t.trace.meta.recorded["memory"]


def test_a_forked_child_that_leaves_the_block_leaves_the_recording_to_its_parent(
    tmp_path: Path,
) -> None:
    code = """
import os, sys, torch
from torch import nn
from tracer import trace
torch.set_num_threads(1)
model = nn.Linear(4, 4)
with trace(out=sys.argv[1]) as t:
    model(torch.ones(1, 4))
    pid = os.fork()
    if pid:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    model(torch.ones(1, 4))
if not pid:
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl
    os._exit(7)
print(status, len(t.trace.table("root_calls")))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "7 2\n"


def test_a_model_given_to_trace_can_be_freed_after_it() -> None:
    import weakref

    model = OwnModel()
    reference = weakref.ref(model)
    with trace(model) as t:
        work(model, 1)
    del model
    gc.collect()
    assert reference() is None
    assert len(t.trace.table("root_calls")) == 1


def test_the_run_opens_in_the_explorer(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    import tracer.tui.app as app

    opened: list[object] = []
    monkeypatch.setattr(app, "open_analysis", opened.append)
    with trace() as t:
        work(model, 1)
    t.open()
    assert opened == [t.analysis]


def test_a_part_that_is_not_installed_is_named() -> None:
    from tracer.live.report import optional_function

    with pytest.raises(UsageError, match=r"tracer\.nothing\.here is not installed"):
        optional_function("tracer.nothing", "here")

"""Samples of the stacks: which function the host was in, without Python frames."""

from __future__ import annotations

import contextlib
import dis
import functools
import io
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from types import FrameType
from typing import Any

import pandas as pd
import pytest
import torch

from tests.live_models import OwnModel, prompt
from tests.make_traces import TraceMaker
from tests.test_cpu_pauses import paused
from tests.test_idle import found
from tracer import trace
from tracer.analyzers import analyze
from tracer.collectors import stack_samples
from tracer.collectors.awaited import awaited
from tracer.collectors.stack_samples import StackSamples
from tracer.findings import Finding, Where

HERE = __file__
# What is not written in Python is named by the part of the line that an instruction is of.
POSITIONS = pytest.mark.skipif(sys.version_info < (3, 11), reason="instructions have a line alone")


def busy(seconds: float) -> int:
    until, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        turns += 1
    return turns


def comprehending(seconds: float) -> list[int]:
    return [sum(range(20_000)) for _ in range(round(2_000 * seconds))]


def reading(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        json.loads(json.dumps([1] * 2000))


def sampled(action: object, seconds: float = 0.4) -> pd.DataFrame:
    samples = StackSamples(0.002)
    samples.start()
    try:
        action(seconds)  # type: ignore[operator]
    finally:
        samples.close()
    table = samples.table()
    return table[table["thread"] == threading.get_native_id()]


def in_one_of_some_tries(test: Callable[..., None]) -> Callable[..., None]:
    """Whoever shares the machine lets threads wait elsewhere, and longer: not all of five times."""

    @functools.wraps(test)
    def tried(*args: Any, **kwargs: Any) -> None:
        for _ in range(4):
            with contextlib.suppress(AssertionError, ValueError):
                return test(*args, **kwargs)
        return test(*args, **kwargs)

    return tried


@in_one_of_some_tries
def test_the_function_that_runs_is_seen_with_its_line() -> None:
    table = sampled(busy)
    seen = table[table["function"] == "busy"]
    first = busy.__code__.co_firstlineno
    assert len(seen) > len(table) / 2
    assert set(seen["file"]) == {HERE}
    assert seen["line"].between(first, first + 4).all()


def test_a_call_that_never_takes_long_is_not_what_a_loop_does() -> None:
    """Threads take turns behind it."""
    table = sampled(busy)
    assert len(table) > 3
    assert set(table["called"]) == {""}


def test_the_turn_of_a_loop_has_the_line_before_it() -> None:
    table = sampled(busy)
    first = busy.__code__.co_firstlineno
    assert set(table[table["function"] == "busy"]["line"]) <= set(range(first + 1, first + 4))


def between_operators(seconds: float) -> None:
    values, until = torch.ones(4), time.perf_counter() + seconds
    while time.perf_counter() < until:
        busy(0.003)
        values.add_(1)  # a long one would be seen itself, on a machine with other work to do


@in_one_of_some_tries
def test_a_function_that_ends_before_python_would_change_threads_is_seen() -> None:
    """And not the operator behind it, at which it gives the interpreter up."""
    lines = sampled(between_operators, 1.0)["function"].astype(str).value_counts()
    assert lines.get("busy", 0) > lines.get("between_operators", 0)


def test_threads_change_as_the_program_wishes_afterwards() -> None:
    usual, samples = sys.getswitchinterval(), StackSamples()
    try:
        samples.start()
        assert sys.getswitchinterval() < usual
        samples.close()
        assert sys.getswitchinterval() == usual
        samples.start()
        sys.setswitchinterval(0.02)
        samples.close()
        assert sys.getswitchinterval() == pytest.approx(0.02)
    finally:
        sys.setswitchinterval(usual)


def test_a_comprehension_counts_as_its_function() -> None:
    functions = set(sampled(comprehending)["function"])
    assert "comprehending" in functions
    assert not [name for name in functions if name.startswith("<")]


def test_the_users_line_stands_beside_the_librarys() -> None:
    table = sampled(reading)
    seen = table[(table["function"] == "reading") & (table["inner_function"] != "reading")]
    assert len(seen)
    assert all("json" in file for file in seen["inner_file"])


def test_nothing_goes_on_after_the_end_and_it_can_begin_again() -> None:
    samples = StackSamples(0.002)
    samples.start()
    busy(0.1)
    samples.close()
    seen = len(samples.table())
    busy(0.05)
    assert len(samples.table()) == seen
    samples.start()
    busy(0.1)
    samples.close()
    assert len(samples.table()) > seen


@in_one_of_some_tries
def test_who_starts_or_ends_the_recording_is_not_seen_to_wait_for_the_looks() -> None:
    samples = StackSamples(10.0)
    samples._look()
    assert not len(samples.table())
    samples.start()
    samples._look()
    seen = len(samples.table())
    samples.close()
    samples._look()
    assert len(samples.table()) == seen > 0


def settle(thread: threading.Thread) -> None:
    """Until a thread works no more."""
    number, before = thread.native_id or 0, -1
    while before != (before := stack_samples._worked_ns(number)):
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="no clock of another thread")
def test_a_thread_that_waits_is_walked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is seen in each look all the same."""
    over, begun, walked = threading.Event(), threading.Event(), Counter[object]()

    def waiting() -> None:
        begun.set()
        over.wait()

    place = StackSamples._place

    def counted(samples: StackSamples, frame: FrameType) -> object:
        outer = frame
        while outer.f_code is not waiting.__code__ and outer.f_back is not None:
            outer = outer.f_back
        walked[outer.f_code] += 1
        return place(samples, frame)

    monkeypatch.setattr(StackSamples, "_place", counted)
    thread = threading.Thread(target=waiting)
    thread.start()
    begun.wait()
    settle(thread)
    samples = StackSamples(10.0)
    samples.start()
    for _ in range(20):  # one that a busy machine holds up is left out
        samples._look()
    samples.close()
    over.set()
    thread.join()
    table = samples.table()
    seen = table["function"].str.endswith("waiting").sum()
    assert seen == table["time_ns"].nunique() > 1 and walked[waiting.__code__] == 1


def test_a_thread_that_has_the_number_of_one_that_ended_is_another() -> None:
    samples, seen = StackSamples(), []

    def looks() -> None:
        samples._look()
        seen.append(threading.get_native_id())

    samples._begun = True
    for _ in range(5):
        thread = threading.Thread(target=looks)
        thread.start()
        thread.join()
    assert set(seen) <= set(samples.table()["thread"])


@pytest.mark.skipif(sys.platform != "linux", reason="no clock of another thread")
def test_what_a_thread_has_worked() -> None:
    before_ns = time.thread_time_ns()
    told_ns = stack_samples._worked_ns(threading.get_native_id())
    assert before_ns <= told_ns <= time.thread_time_ns()
    assert stack_samples._worked_ns(2**22) == -1  # there is no such number


def test_in_a_call_of_a_model_looks_are_rarer() -> None:
    """And the longer one takes, the rarer."""
    open_calls = [0]
    samples = StackSamples(0.01, in_call=lambda: open_calls[0] > 0)
    beside = [samples._wait_s(looks, 1e-6) for looks in (1, 29, 30, 60, 1000)]
    assert beside == pytest.approx([0.01, 0.01, 0.02, 0.04, 0.04])
    assert samples._wait_s(8, 100e-6) == pytest.approx(0.05)
    assert samples._wait_s(7, 100e-6) == pytest.approx(0.01)  # the first find nothing in the caches
    open_calls[0] = 1
    assert [samples._wait_s(looks, 1e-6) for looks in (1, 1000)] == pytest.approx([0.04, 0.04])
    assert samples._wait_s(1, 100e-6) == pytest.approx(0.05)


def test_a_capture_knows_whether_a_model_is_called() -> None:
    seen: list[bool] = []

    class Asks(torch.nn.Module):
        def forward(self) -> None:
            assert t._capture is not None and t._capture._stacks is not None
            seen.append(t._capture._stacks._in_call())

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.add_module("asks", Asks())
    model.forward = model[1].forward  # type: ignore[method-assign]
    with trace() as t:
        for _ in range(2):
            model()
            assert t._capture is not None and t._capture._stacks is not None
            seen.append(t._capture._stacks._in_call())
    assert seen == [True, False] * 2


def saving(seconds: float) -> None:
    state = {str(number): torch.zeros(1000) for number in range(200)}
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        torch.save(state, io.BytesIO())


def resting(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        time.sleep(0.02)


def counting(seconds: float) -> None:
    text = "ab " * 20_000
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        text.split()


class Asker:
    def ask(self, seconds: float) -> None:
        queue: Queue[int] = Queue()
        with contextlib.suppress(Empty):
            queue.get(timeout=seconds)


@pytest.mark.parametrize(
    ("action", "function", "name"),
    [
        (saving, "saving", "torch.save"),
        (reading, "reading", "json."),
        (Asker().ask, "Asker.ask", "queue.Queue.get"),
        pytest.param(resting, "resting", "time.sleep", marks=POSITIONS),
        pytest.param(counting, "counting", "text.split", marks=POSITIONS),
    ],
)
@in_one_of_some_tries
def test_what_the_users_line_calls_has_its_public_name(
    action: Callable[[float], object], function: str, name: str
) -> None:
    table = sampled(action)
    called = table[table["function"].str.endswith(function)]["called"].astype(str)
    assert called.str.startswith(name).sum() > len(called) / 2


def test_what_is_no_call_has_no_name() -> None:
    def adding(seconds: float) -> int:
        until, total = time.perf_counter() + seconds, 0
        while total >= 0 and time.perf_counter() < until:
            for number in range(10_000):
                total += number
        return total

    table = sampled(adding)
    called = Counter(table[table["function"].str.endswith("adding")]["called"])
    assert set(called) <= {"", "time.perf_counter"} and called[""] > called["time.perf_counter"]


def sample(
    maker: TraceMaker,
    at_us: float,
    line: int,
    function: str,
    inner: str = "",
    called: str = "",
    inner_file: str = "library.py",
    thread: int = 1,
    awaited: str = "",
) -> None:
    name = inner or function
    maker.side(
        "stack_samples",
        time_ns=round(at_us * 1000),
        thread=thread,
        file="own.py" if line > 0 else "",
        line=line,
        function=function if line > 0 else "",
        inner_file=inner_file if inner else "own.py",
        inner_line=9 if inner else line,
        inner_function=name,
        called=called,
        awaited=awaited,
    )


def with_samples(pauses: list[tuple[int, str, str]]) -> TraceMaker:
    """The steps of `paused`: two samples in the operators of each, at line 3 of `loop`, and those
    of `pauses` in its pause."""
    maker = paused()
    for step in range(6):
        at = 30_000 * step
        for place in (2_000, 6_000):
            sample(maker, at + place, 3, "loop")
        for number, (line, function, inner) in enumerate(pauses):
            sample(maker, at + 12_000 + 1_000 * number, line, function, inner)
    return maker


def thread_of(maker: TraceMaker) -> TraceMaker:
    assert maker.threads == [1]
    return maker


def test_a_look_that_fails_is_noted_and_troubles_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(samples: StackSamples) -> None:
        raise RuntimeError("no look")

    monkeypatch.setattr(StackSamples, "_look", fails)
    with trace() as t:
        busy(0.1)
    (note,) = [note for note in t.trace.notes if note.rule == "capture.failed"]
    assert "samples of the stacks" in note.message


def test_a_pause_is_named_by_the_function_that_samples_saw() -> None:
    maker = with_samples([(21, "collate", ""), (22, "collate", ""), (22, "collate", "")])
    (pause,) = found(analyze(thread_of(maker).build()), "gap.host")
    assert (pause.where.file, pause.where.line) == ("own.py", 22)
    assert pause.where.function == "collate"
    assert pause.count == 6 and "in collate, 20 ms at a time" in pause.title
    assert "own.py:22 in collate" in pause.advice


def test_where_the_loop_is_its_line_tells_and_not_its_function() -> None:
    maker = with_samples([(5, "loop", ""), (5, "loop", "")])
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where.line == 5
    assert "line 5 of loop" in pause.title


def with_calls(function: str, line: int, *called: str, running: str = "") -> TraceMaker:
    """The same, where the line in the pause calls these, and the loop beside it `running`."""
    maker = paused()
    for step in range(6):
        at = 30_000 * step
        for place in (2_000, 6_000):
            sample(maker, at + place, 3, "loop", called=running)
        for number, name in enumerate(called):
            sample(maker, at + 12_000 + 1_000 * number, line, function, called=name)
    return maker


def test_a_pause_is_named_by_what_its_line_calls() -> None:
    maker = with_calls("checkpoint", 21, "torch.save", "torch.save", "")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.title == "torch.save, in checkpoint, takes 20 ms at a time outside operators"
    assert pause.advice.startswith("own.py:21 calls it. Save less often")
    assert pause.where == Where("own.py", 21, "checkpoint") and pause.detail["call"] == "torch.save"
    maker = with_calls("loop", 5, "wandb.sdk.wandb_run.Run.log", "wandb.sdk.wandb_run.Run.log")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.title.startswith("wandb.sdk.wandb_run.Run.log, in line 5 of loop, takes 20 ms")
    assert "the step waits for the answer" in pause.advice


def checkpointing(*, also: str = "") -> TraceMaker:
    """Steps of 10 ms, each with 30 ms after it: 8 of an operator, then none, in `checkpoint`; the
    first 10 in another function, where it has a name."""
    maker = TraceMaker()
    for step in range(6):
        at = 40_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 10_000)
        maker.operator("aten::mm", at, 10_000)
        begin = at + 10_010
        if also:
            maker.operator("aten::lerp", begin, 4_000)
            sample(maker, begin + 1_000, 9, also)
            sample(maker, begin + 5_000, 9, also)
            begin += 10_000
        maker.operator("aten::clone", begin, 8_000)
        for place in (1_000, 3_000, 5_000, 7_000):
            sample(maker, at + place, 3, "loop")
        for place, called in ((1_000, ""), (10_000, "torch.save"), (15_000, "torch.save")):
            sample(maker, begin + place, 21, "checkpoint", called=called)
    return maker


def test_a_pause_between_the_steps_costs_the_operators_in_it_as_well() -> None:
    """As a stopwatch around the function would say."""
    analysis = analyze(checkpointing().build())
    (pause,) = found(analysis, "gap.host")
    # What follows the last step is in no window.
    assert (pause.count, pause.cost_ns) == (5, 5 * 30_000_000)
    assert pause.gain_ns == pause.detail["between_steps_ns"] == pause.cost_ns
    assert pause.detail["operators_ns"] == 5 * 8_010_000
    assert pause.title.startswith("torch.save, in checkpoint, takes 30 ms at a time, 8.01 ms of it")
    (between,) = found(analysis, "loop.between")
    assert between.cost_ns is None and between.detail["counted_in"] == "gap.host"


def test_what_another_function_does_between_the_steps_is_not_its_cost() -> None:
    (save,) = (
        f
        for f in analyze(checkpointing(also="average").build()).findings
        if "checkpoint" in f.title
    )
    # From its first sample to the next step.
    assert save.cost_ns == 5 * 18_990_000 and save.detail["operators_ns"] == 5 * 7_000_000


@pytest.mark.parametrize(
    ("called", "running"),
    [
        (("torch.save", "json.dump", ""), ""),  # most of it is none of them
        (("torch.Tensor.backward", "torch.Tensor.backward"), ""),
        (("library.Trainer.train", "library.Trainer.train"), "library.Trainer.train"),
    ],
)
def test_what_says_nothing_of_a_pause_is_not_named(called: tuple[str, ...], running: str) -> None:
    (pause,) = found(analyze(with_calls("work", 21, *called, running=running).build()), "gap.host")
    assert pause.title == "host work outside operators in work, 20 ms at a time"
    assert "call" not in pause.detail


def test_threads_that_wait_explain_no_pause() -> None:
    """Clients that wait for their answers, while one thread makes the next prompt."""
    maker = with_samples([(21, "prompt", "")])
    wait = ("Event.wait", "", "/lib/python3.12/threading.py")
    for step in range(6):
        for place in (2_000, 6_000, 12_000):
            for _ in range(4):
                sample(maker, 30_000 * step + place, 40, "client", *wait)
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where == Where("own.py", 21, "prompt")


def test_where_all_wait_the_line_that_waits_is_named() -> None:
    maker = with_samples([])
    for step in range(6):
        wait = ("Queue.get", "", "/lib/python3.12/queue.py")
        sample(maker, 30_000 * step + 12_000, 40, "next_request", *wait)
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where.function == "next_request"
    assert pause.title.startswith("the host waits in next_request for another thread or process")
    assert pause.advice.startswith("It waits at own.py:40 and does nothing itself")
    assert pause.gain_ns is None


def in_pauses(maker: TraceMaker, at_us: float, *place: object, **more: object) -> TraceMaker:
    """A sample in each pause of `paused`."""
    for step in range(6):
        sample(maker, 30_000 * step + at_us, *place, **more)  # type: ignore[arg-type]
    return maker


def test_who_holds_the_lock_is_named_and_not_those_that_wait_for_it() -> None:
    maker = in_pauses(with_samples([]), 12_000, 7, "fetch", called="time.sleep")
    for _ in range(3):
        in_pauses(maker, 12_000, 9, "one", awaited="lock")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where == Where("own.py", 7, "fetch")
    assert pause.title == (
        "3 threads wait for a lock while time.sleep, in fetch, takes 20 ms at a time outside "
        "operators"
    )
    assert "3 threads wait for a lock at own.py:9 meanwhile: if fetch runs under" in pause.advice
    assert (pause.detail["lock_line"], pause.detail["lock_waiters"]) == ("own.py:9", 3)


def test_who_waits_for_an_event_waits_for_no_lock_of_the_program() -> None:
    """By the lock that is within it."""
    maker = in_pauses(with_samples([]), 12_000, 7, "fetch")
    wait = ("Thread.join", "", "/lib/python3.11/threading.py")
    in_pauses(maker, 12_000, 18, "main", *wait, awaited="lock")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.title == "host work outside operators in fetch, 20 ms at a time"
    assert "lock_line" not in pause.detail


def test_where_threads_are_known_to_wait_alone_nothing_is_to_be_made_cheaper() -> None:
    maker = in_pauses(with_samples([]), 12_000, 9, "one", awaited="lock")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.title.startswith("the host waits in one for another thread or process, 20 ms")
    assert "cheaper" not in pause.advice and pause.gain_ns is None


@pytest.mark.parametrize(
    ("function", "file", "waits"),
    [
        ("_worker", "/lib/python3.11/concurrent/futures/thread.py", True),
        ("_WorkItem.run", "/lib/python3.11/concurrent/futures/thread.py", False),
        ("Thread.run", "/lib/python3.11/threading.py", False),  # what it runs is not in Python
        ("BaseSelector.select", "/lib/python3.11/selectors.py", True),
    ],
)
def test_an_idle_thread_of_the_standard_library_is_no_work(
    function: str, file: str, waits: bool
) -> None:
    maker = in_pauses(with_samples([]), 12_000, -1, function, function, "", file)
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.title.startswith(f"the host waits in {function}") is waits
    assert ("make it cheaper" in pause.advice) is not waits


def test_what_all_wait_for_is_named_in_a_thread_that_issues_nothing() -> None:
    maker = in_pauses(with_samples([]), 12_000, 40, "next_batch", awaited="thread")
    in_pauses(maker, 12_000, 21, "tokenize", thread=2)
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where == Where("own.py", 21, "tokenize")


def test_what_another_thread_does_all_the_time_explains_no_pause() -> None:
    """A monitor that sleeps while the model runs as well."""
    maker = in_pauses(with_samples([]), 12_000, 40, "next_batch", awaited="thread")
    for place in (2_000, 6_000, 12_000):
        in_pauses(maker, place, 50, "monitor", called="time.sleep", thread=2)
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where.function == "next_batch" and "waits" in pause.title


@pytest.mark.parametrize(
    ("places", "called", "title", "advice"),
    [
        (6, "", ", most of it while tokenizer makes many objects", "own.py:28 makes many objects"),
        (6, "gc.collect", ", most of it which tokenizer asks for", "own.py:28 calls gc.collect()"),
        (2, "", "", "Call gc.freeze() after set-up"),  # of most of it the place is not known
    ],
)
def test_collections_are_named_by_the_line_that_they_run_in(
    places: int, called: str, title: str, advice: str
) -> None:
    """Seen there at once when they are done."""
    maker = with_samples([])
    for step in range(6):
        at = 30_000 * step
        times = {"start_ns": (at + 12_000) * 1000, "end_ns": (at + 27_000) * 1000}
        maker.side("collections", **times, generation=2)
        if step < places:
            sample(maker, at + 27_500, 28, "tokenizer", called=called)
    (pause,) = found(analyze(maker.build()), "gap.gc")
    assert pause.title == f"Python's garbage collector stops the host, 15 ms at a time{title}"
    assert pause.advice.startswith(advice)
    assert pause.where == (Where("own.py", 28, "tokenizer") if title else Where())


LOCK, SIMPLE = threading.Lock(), SimpleQueue[int]()


def enters() -> None:
    with LOCK:
        pass


def acquires() -> None:
    LOCK.acquire()
    LOCK.release()


def gets() -> None:
    SIMPLE.get(timeout=0.5)


def sleeps() -> None:
    time.sleep(0.5)


@pytest.mark.parametrize(
    ("action", "what"),
    [
        (enters, "lock"),
        pytest.param(acquires, "lock", marks=POSITIONS),
        pytest.param(gets, "thread", marks=POSITIONS),
        (sleeps, ""),
    ],
)
def test_what_a_thread_waits_for_without_a_frame_of_its_own(
    action: Callable[[], None], what: str
) -> None:
    samples, thread = StackSamples(10.0), threading.Thread(target=with_no_fuss, args=(action,))
    with LOCK:
        thread.start()
        time.sleep(0.1)
        samples.start()
        for _ in range(20):  # one that a busy machine holds up is left out
            samples._look()
        samples.close()
    thread.join()
    table = samples.table()
    assert set(table[table["function"] == action.__name__]["awaited"]) == {what}


def with_no_fuss(action: Callable[[], None]) -> None:
    with contextlib.suppress(Empty):
        action()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("names.get('a')", ""),
        ("names.get(key, None)", ""),
        ("work.get()", "thread"),
        ("self.queues[0].get(True, timeout=1)", "thread"),
        ("select.select([a], [], [])", "thread"),
        ("tensor.select(0, 1)", ""),
        ("epoll.poll(1)", "thread"),
        ("self.lock.acquire()", "lock"),
    ],
)
@POSITIONS
def test_a_wait_is_known_by_how_it_is_called(tmp_path: Path, source: str, expected: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(f"{source}\n")
    code = compile(file.read_text(), str(file), "exec")
    calls = [i.offset for i in dis.get_instructions(code) if i.opname.startswith("CALL")]
    assert awaited(code, calls[-1]) == expected
    assert awaited(code, -1) == awaited(code, 0) == ""


def test_where_the_users_line_does_it_all_the_library_is_named() -> None:
    maker = with_samples([(3, "loop", "decode_all"), (3, "loop", "decode_all")])
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert (pause.where.file, pause.where.line) == ("library.py", 9)
    assert pause.where.function == "decode_all"


def test_what_a_model_does_between_its_operators_is_not_named() -> None:
    maker = with_samples([(3, "loop", "Attention.forward"), (3, "loop", "Attention.forward")])
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where.function is None


def scanned(called: str = "") -> TraceMaker:
    """Steps of 10 ms: a long operator of the loop, then 200 short ones 30 us apart in `scan`."""
    maker = TraceMaker()
    for step in range(6):
        at = 10_000.0 * step
        maker.annotation(f"ProfilerStep#{step}", at, 9_990)
        maker.operator("aten::mm", at + 10, 2_900)
        for number in range(200):
            maker.operator("aten::item", at + 3_000 + 35 * number, 5)
        for place in (500, 1_500, 2_500):
            sample(maker, at + place, 3, "loop")
        for place in range(3_100, 9_800, 1_000):
            sample(maker, at + place, 15, "scan", called=called)
    return maker


def test_what_runs_operators_itself_is_not_read_value_by_value() -> None:
    """A backward pass, say: its caller's line cannot call larger operators."""
    assert found(analyze(scanned("torch.Tensor.backward").build()), "gap.host") == []


def test_many_short_pauses_of_one_function_are_added_up() -> None:
    maker = scanned()
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert (pause.where.file, pause.where.line, pause.where.function) == ("own.py", 15, "scan")
    assert pause.cost_ns == pytest.approx(6 * 199 * 30_000, rel=0.05)
    assert pause.steps == tuple(range(6)) and "short pauses" in pause.title


def test_one_sample_names_nothing() -> None:
    maker = paused()
    sample(maker, 15_000, 21, "collate")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert pause.where.function is None


def test_a_pause_without_a_sample_is_like_its_like() -> None:
    maker = paused()
    for step in range(3):
        sample(maker, 30_000 * step + 15_000, 21, "collate")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert (pause.count, pause.where.function) == (6, "collate")


@pytest.mark.parametrize(
    ("called", "title"),
    [
        ("", "host work in tokenize keeps the device waiting"),
        ("tokenizers.encode", "tokenizers.encode in tokenize keeps the device waiting"),
    ],
)
def test_idle_of_a_device_is_named_by_what_the_host_did(called: str, title: str) -> None:
    maker = TraceMaker()
    for step in range(6):
        at = 20_000.0 * step
        maker.annotation(f"ProfilerStep#{step}", at, 20_000)
        for number in range(20):
            begin = at + 20 * number
            maker.operator("aten::mm", begin, 10)
            maker.launch("gemm", start=begin + 2, run=(begin + 10, begin + 28))
        for number in range(3):
            sample(maker, at + 5_000 + 1_000 * number, 21, "tokenize", called=called)
    (host,) = found(analyze(maker.build()), "gap.host")
    assert (host.where.file, host.where.line) == ("own.py", 21)
    assert host.title == title


def slept(busy_us: float, samples: Callable[[TraceMaker, float], None]) -> list[Finding]:
    """Six steps of 20 ms: 1 ms of launches at line 3 of `loop`, then a sleep, in which the device
    goes on for a while; what gap.host says."""
    maker = TraceMaker()
    for step in range(6):
        at = 20_000.0 * step
        maker.annotation(f"ProfilerStep#{step}", at, 20_000)
        done = at
        for number in range(10):
            begin = at + 100 * number
            maker.operator("aten::mm", begin, 90)
            until = max(done, begin + 10) + busy_us / 10
            maker.launch("gemm", start=begin + 2, run=(max(done, begin + 10), until))
            done = until
        samples(maker, at)
    return found(analyze(maker.build()), "gap.host")


def test_a_sleep_that_began_while_the_device_worked_is_no_loop() -> None:
    """Three samples of four in the sleep are taken while the device still works."""

    def looks(maker: TraceMaker, at: float) -> None:
        sample(maker, at + 450, 3, "loop")
        for place in (3_000, 7_000, 11_000, 17_000):
            sample(maker, at + place, 8, "loop")

    (host,) = slept(15_000, looks)
    assert (host.where.file, host.where.line) == ("own.py", 8)
    assert host.cost_ns == pytest.approx(6 * 5e6, rel=0.1)


def test_one_look_at_operators_does_not_make_a_place_the_loop() -> None:
    def looks(maker: TraceMaker, at: float) -> None:
        if at == 0:
            sample(maker, 450, 8, "loop")
        sample(maker, at + 10_000, 8, "loop")

    (host,) = slept(2_000, looks)
    assert (host.where.file, host.where.line) == ("own.py", 8)


def test_two_looks_alone_name_nothing() -> None:
    """With none at operators to compare them with."""

    def looks(maker: TraceMaker, at: float) -> None:
        if at < 40_000:
            sample(maker, at + 10_000, 8, "main")

    (host,) = slept(2_000, looks)
    assert host.where.file is None


def test_where_the_loop_is_no_pause_is_explained_by_it() -> None:
    def looks(maker: TraceMaker, at: float) -> None:
        for place in (150, 250, 10_000):
            sample(maker, at + place, 3, "loop")

    (host,) = slept(2_000, looks)
    assert host.where.file is None


@pytest.mark.parametrize("detail", ["modules", "full"])
@in_one_of_some_tries
def test_a_live_run_names_the_function_between_its_steps(detail: str) -> None:
    model = OwnModel().eval()
    with trace(detail=detail) as t, torch.no_grad():  # type: ignore[arg-type]
        for _ in range(6):
            model(prompt())
            busy(0.06)
    (pause, *_) = [f for f in t.analysis.findings if f.rule == "gap.host"]
    assert (pause.where.file, pause.where.function) == (HERE, "busy")


def test_a_pause_that_begins_in_its_step_is_one() -> None:
    """The call of the model ends 2 ms after its last operator."""
    maker = TraceMaker()
    for step in range(6):
        at = 40_000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 12_000)
        maker.operator("aten::mm", at, 10_000)
        for place in (1_000, 3_000, 5_000, 7_000):
            sample(maker, at + place, 3, "loop")
        for place in (11_000, 20_000, 30_000):
            sample(maker, at + place, 21, "checkpoint")
    (pause,) = found(analyze(maker.build()), "gap.host")
    assert (pause.count, pause.cost_ns) == (5, 5 * 30_000_000)
    assert pause.title.startswith("host work in checkpoint, 30 ms at a time")

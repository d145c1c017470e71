"""One live capture: starts the sources, ends them in order, and keeps what they saw.

Nothing here may disturb the traced program: what fails is noted, and the program goes on.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tracer.collectors import (
    attention_facts,
    graph_captures,
    host_events,
    import_watch,
    run_facts,
    thread_notes,
    torch_private,
    user_code,
    wait_lines,
)
from tracer.collectors.attention_facts import AttentionCalls
from tracer.collectors.compiling import (
    before_compiling,
    compiled_graphs,
    generated_ranges,
    outside_compiled,
)
from tracer.collectors.compiling.compile_events import CompileEvents
from tracer.collectors.graph_captures import GraphCaptures
from tracer.collectors.host_events import Children, Collections
from tracer.collectors.logs import fallback_logs
from tracer.collectors.logs.fallback_logs import FallbackLogs
from tracer.collectors.modules.module_ranges import ModuleRanges
from tracer.collectors.nvml import DeviceMetrics
from tracer.collectors.process_groups import ProcessGroups
from tracer.collectors.run_facts import (
    allocator_counters,
    allocator_facts,
    collect_facts,
    describe_model,
)
from tracer.collectors.stack_samples import StackSamples
from tracer.collectors.steps import device_steps, optimizer_steps
from tracer.collectors.steps.announced_steps import Announced, Step, StepLog
from tracer.collectors.steps.calibration import WAITING_STEPS, Calibration
from tracer.collectors.steps.device_steps import DeviceSteps
from tracer.collectors.steps.optimizer_steps import OptimizerSteps
from tracer.collectors.torch_profiler import (
    SWITCHES,
    ProfilerSession,
    State,
    active_steps,
    gpu_is_usable,
)
from tracer.collectors.wait_lines import WaitLines
from tracer.collectors.watchdog import Bark, Watchdog, bark_note
from tracer.errors import CaptureError
from tracer.events import Note
from tracer.live.notes import (
    calibrated_only,
    failed,
    interrupted,
    limit_reached,
    refused,
    steps_missed,
    yielded,
)
from tracer.live.options import Limits, Options
from tracer.live.recorded import Recorded

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

_log = logging.getLogger("tracer")

Source = (
    Collections
    | Children
    | DeviceMetrics
    | FallbackLogs
    | WaitLines
    | AttentionCalls
    | GraphCaptures
    | CompileEvents
    | ProcessGroups
    | OptimizerSteps
)


_owner_lock = threading.RLock()
_owner: Capture | None = None


class Capture:
    """Started once, ended once; `recorded` is complete after its end."""

    def __init__(self, options: Options, place: str) -> None:
        self.recorded = Recorded(options.detail, scheduled=options.schedule is not None)
        self._options = options
        self._place = place  # where the program started it
        self._steps = StepLog(self)
        self._session: ProfilerSession | None = None
        self._ranges: ModuleRanges | None = None
        self._device_steps: DeviceSteps | None = None
        self._watchdog: Watchdog | None = None
        self._calibration: Calibration | None = None
        self._stacks: StackSamples | None = None
        self.steps_announced = False
        self._open_calls = 0  # of root modules, of all threads
        self._sources: list[Source] = []
        # Each call costs them something: on only while the profiler records.
        self._pausing: list[WaitLines | AttentionCalls] = []
        self._resting: list[AttentionCalls | CompileEvents] = []
        self._allocator: Mapping[int, Mapping[str, int]] = {}
        self._next_look_ns = 0
        self._work_began_ns = 0  # the first step or call of a model
        self._cut: tuple[str, str] | None = None  # the limit that ended the recording
        self._ended = False
        self._process = os.getpid()

    # The start

    def start(self, model: nn.Module | None = None) -> None:
        """Start every source, or refuse where another profiler is active. `model`: one to name."""
        try:
            if self._claim():
                self._start_sources(model)
        except CaptureError as error:
            self._end_refused(refused(str(error), error.rule))
        except Exception as error:  # the border to the traced program
            self._end_refused(failed("the start of the trace", error))
        except BaseException:  # an interruption
            self._end()
            raise

    def _claim(self) -> bool:
        global _owner
        with _owner_lock:
            other = _owner
            if other is not None and other._options.yields_to_traces:
                other.end_early("a trace that the program started")
                _release(other)
                other = None
            if other is None:
                _owner = self
                return True
        self._ended = self.recorded.refused = True
        active = f"another trace is already active (started at {other._place})"
        self._warn(refused(active, "capture.busy"))
        return False

    def _start_sources(self, model: nn.Module | None) -> None:
        _keep_compiler_out()
        with self._guarded("the search for a GPU"):
            self.recorded.gpu = gpu_is_usable()
        self._make_ranges(model)
        self._sources = [Collections(), Children(), ProcessGroups()]
        if self._options.metrics and self.recorded.gpu:
            self._sources.append(DeviceMetrics())
        if self._options.watchdog is not None:
            self._watchdog = Watchdog(self._options.watchdog, on_bark=self._barked)
            with self._guarded("the watchdog"):
                self._watchdog.start()
        if self._options.detail == "light":
            self._device_steps = DeviceSteps()
            self._sources.append(OptimizerSteps(self._device_steps, self._failed))
        else:
            self._sources.append(FallbackLogs())
        if self._options.detail in ("modules", "full"):
            attention = AttentionCalls()
            self._pausing = [WaitLines(), attention]
            self._resting = [attention]
            self._sources.append(GraphCaptures())
            if self._ranges is not None:
                compiling = CompileEvents(self._ranges.tree, self._ranges.make_range)
                self._sources.append(compiling)
                self._resting.append(compiling)
        for source in self._sources:
            with self._guarded(f"the source {type(source).__name__}"):
                source.start()
        with self._guarded("the counters of the allocator"):
            self._allocator = allocator_counters()
        if self._options.detail != "light":
            self._start_profiler()
        now_ns = time.time_ns()
        self.recorded.start_ns = self._steps.start_ns = now_ns

    def _make_ranges(self, model: nn.Module | None) -> None:
        detail = self._options.detail
        self._ranges = ModuleRanges(
            self,
            self._failed,
            ranges=detail in ("modules", "full"),
            every_module=detail == "full",
            in_frames=detail in SWITCHES and SWITCHES[detail].stacks,
            describe=self._described,
        )
        with self._guarded("the names of modules"):
            if model is not None:
                self._ranges.tree.add(model)
            self._ranges.start()

    def _described(self, model: nn.Module) -> dict[str, Any]:
        """The facts of a model; none of one whose own code fails when it is asked."""
        try:  # no `_guarded`: this may run where a compiler looks, which takes no generator
            return describe_model(model)
        except Exception as error:  # the border to the traced program
            self._failed("the description of a model", error)
            return {}

    def _start_profiler(self) -> None:
        detail = self._options.detail
        self._session = ProfilerSession(
            SWITCHES[detail],
            gpu=self.recorded.gpu,
            schedule=self._options.schedule,
            on_state=self._state_changed,
        )
        if self._options.calibrate or self._options.schedule is not None:
            self._calibration = Calibration(gpu=self.recorded.gpu)
        if not self._options.calibrate:
            self._begin_profiler(self._session)
        self._calibrate_step(self._options.schedule is not None)

    def _begin_profiler(self, session: ProfilerSession) -> None:
        try:
            session.start()
        except CaptureError:
            raise
        except Exception as error:  # the profiler's own: without it there are still steps
            self._failed("the start of the profiler", error)

    def _state_changed(self, state: State) -> None:
        now_ns = time.time_ns()
        if state is State.RECORDING:
            self.recorded.start_ns = now_ns
        elif state in (State.DONE, State.EMPTY) and not self.recorded.end_ns:
            self.recorded.end_ns = now_ns
        self._pause(state is not State.RECORDING)
        self._sample_stacks(state is State.RECORDING)
        if self._ranges is not None:
            self._ranges.record_ranges(state is State.RECORDING)

    def _pause(self, waits: bool) -> None:
        for source in self._pausing:
            with self._guarded(f"the source {type(source).__name__}"):
                source.close() if waits else source.start()

    def _sample_stacks(self, records: bool) -> None:
        """While the profiler records: a thread begun before it would be recorded with it."""
        if self._stacks is None and self._options.detail in ("modules", "full"):
            self._stacks = StackSamples(in_call=lambda: self._open_calls > 0)
        if self._stacks is not None:
            with self._guarded("the samples of the stacks"):
                self._stacks.start() if records else self._stacks.close()

    def _end_refused(self, note: Note) -> None:
        self.recorded.refused = True
        self._end()
        self._warn(note)

    # While it runs

    def step(self, name: str, phase: str, caller: FrameType) -> Step:
        """The program announces a step."""
        return self._steps.begin(name, phase, caller)

    def step_begins(self) -> None:
        self.steps_announced = True
        self._work_began_ns = self._work_began_ns or time.time_ns()
        self._calibrate_step()
        if self._watchdog is not None:
            self._watchdog.begin()
        if self._device_steps is not None:
            self._mark(self._device_steps.begin, "step")

    def step_ends(self) -> None:
        if self._watchdog is not None:
            self._watchdog.end()
        if self._device_steps is not None:
            self._mark(self._device_steps.end, "step")
        if self._session is not None and not self._ended:
            if self._options.schedule is not None and not self._session.waits_next:
                self._end_calibration()
            with self._guarded("the schedule"):
                self._session.step()
        self._look_at_limits(time.time_ns())

    def _calibrate_step(self, counts: bool = True) -> None:
        """A step begins: time it while the profiler waits, and start one that waits for this."""
        calibration, session = self._calibration, self._session
        if calibration is None or session is None or not session.waits or not counts:
            return
        with self._guarded("the measurement without the profiler"):
            calibration.mark()
            if self._options.calibrate and calibration.steps > WAITING_STEPS:
                self._end_calibration()
                self._begin_profiler(session)

    def _end_calibration(self) -> None:
        if self._calibration is None or self._calibration.closed:
            return
        with self._guarded("the measurement without the profiler"):
            if not self._options.calibrate and self._calibration.steps:
                self._calibration.mark()
            self.recorded.unprofiled = self._calibration.close()
            self.recorded.steps_announced = self.steps_announced

    def root_begins(self) -> None:
        self._open_calls += 1
        self._work_began_ns = self._work_began_ns or time.time_ns()
        if self._options.calibrate and not self.steps_announced:
            self._calibrate_step()
        # Where the program announces no steps, each call of its model is one.
        if self._watchdog is not None and not self.steps_announced:
            self._watchdog.begin()
        if self._device_steps is not None:
            self._device_steps.begin("call")

    def root_rests(self) -> None:
        for source in self._resting:
            source.rest()

    def root_ends(self, now_ns: int) -> None:
        self._open_calls -= 1
        for source in self._resting:
            source.wake()
        if self._watchdog is not None and not self.steps_announced:
            self._watchdog.end()
        if self._device_steps is not None:
            self._device_steps.end("call")
        self._look_at_limits(now_ns)

    def announced_since(self, first: int) -> list[Announced]:
        """Announced steps that have ended, from the `first` on; may be asked by another thread."""
        return self._steps.ended_since(first)

    def calls_since(self, first: int) -> NDArray[np.int64]:
        """Columns of calls of root modules that have ended: start_ns, end_ns, batch, tokens,
        cached, graded, fills; may be asked by another thread."""
        if self._ranges is None:
            return np.zeros((0, 7), dtype=np.int64)
        return self._ranges.calls.ended_since(first)

    def so_far(self) -> Recorded:
        """Steps and calls that have ended, as a recording without the profiler: what is known while
        it runs. May be asked by another thread."""
        return Recorded(
            "light",
            start_ns=self.recorded.start_ns,
            end_ns=time.time_ns(),
            steps=self._steps,
            ranges=self._ranges,
            optimizers=self._optimizers_now(),
            gpu=self.recorded.gpu,
            goes_on=self._options.detail != "light",
        )

    def _optimizers_now(self) -> pd.DataFrame | None:
        known = (s.table() for s in self._sources if isinstance(s, OptimizerSteps))
        return next(known, None)

    def counters_now(self) -> list[tuple[int, str, float]]:
        """The last sample of each counter of each device; may be asked by another thread."""
        sampled = (s for s in self._sources if isinstance(s, DeviceMetrics))
        return [counter for source in sampled for counter in source.latest()]

    def _barked(self, bark: Bark) -> None:
        self._warn(bark_note(bark))

    def _mark(self, mark: Any, owner: str) -> None:
        with self._guarded("a mark on the device"):
            mark(owner)

    def _look_at_limits(self, now_ns: int) -> None:
        if now_ns < self._next_look_ns or self._session is None:
            return
        limits = self._options.limits
        self._next_look_ns = now_ns + _look_again_after_ns(limits)
        if limits.seconds is not None and self._worked_ns(now_ns) > limits.seconds * 1e9:
            self._reach_limit(f"{limits.seconds:g} s", "seconds")
        elif _free_memory_ratio() < limits.free_memory_ratio:
            left = f"less than {limits.free_memory_ratio:.0%} of the machine's memory is left"
            self._reach_limit(left, "free_memory_ratio")

    def _reach_limit(self, words: str, limit: str) -> None:
        session = self._session
        if session is None or session.state is not State.RECORDING or not session.can_stop_here:
            return
        with self._guarded("the end of the profiler"):
            session.stop()
        self._cut = words, limit
        _log.warning("tracer: capture.limit: the recording ends at its limit (%s)", words)

    def _worked_ns(self, now_ns: int) -> int:
        """How long work was recorded: imports and loading before it do not count."""
        return now_ns - max(self._work_began_ns, self.recorded.start_ns)

    def _note_limit(self) -> None:
        if self._cut is None:
            return
        after_ns = time.time_ns() - self.recorded.end_ns
        calls = int((self.calls_since(0)[:, 0] >= self.recorded.end_ns).sum())
        self.recorded.notes.append(limit_reached(*self._cut, after_ns, calls))

    def end_early(self, reason: str) -> None:
        """Make room for another recorder; what was recorded until now is kept."""
        if self._session is None:
            self.recorded.notes.append(yielded(reason))
        else:
            self._session.end_early(reason)
        self._stop_sources()

    # The end

    def stop(self, error: BaseException | None) -> None:
        """End every source. `error`: what left the traced block, if anything did."""
        if self._ended:
            return
        if self.forked:
            self._leave_to_parent()
            return
        if error is not None:
            self.recorded.notes.append(interrupted(error))
        self._steps.close()
        self._end()
        self._note_schedule()
        self._note_calibration()

    def _end(self) -> None:
        try:
            self._stop_sources()
        except BaseException:  # an interruption: what it kept from ending ends now
            self._close_sources()
            raise
        finally:
            _release(self)

    @property
    def forked(self) -> bool:
        """Whether this is a child that inherited the recording of its parent."""
        return os.getpid() != self._process

    def _leave_to_parent(self) -> None:
        """The child that left the block takes our patches away; the recording is its parent's."""
        self._ended = True
        if self._session is not None:
            self._session.abandon()
        self._close_sources()
        _release(self)

    def _stop_sources(self) -> None:
        if self._ended:
            return
        self._ended = True
        recorded = self.recorded
        recorded.session, recorded.steps, recorded.ranges = self._session, self._steps, self._ranges
        try:
            self._end_measuring()
        finally:
            self._close_sources()
        self._keep()

    def _end_measuring(self) -> None:
        recorded = self.recorded
        if self._session is not None:
            with self._guarded("the end of the profiler"):
                self._session.stop()
            if self._session.yielded_to:
                recorded.notes.append(yielded(self._session.yielded_to))
        recorded.end_ns = recorded.end_ns or time.time_ns()
        if self._device_steps is not None:
            with self._guarded("the marks on the device"):
                recorded.spans = self._device_steps.close()

    def _close_sources(self) -> None:
        """The last begun first: one hook may stand on another. What interrupts the end of one does
        not keep the others."""
        with ExitStack() as closing:
            for source in (*self._sources, *self._pausing):
                closing.callback(self.attempt, f"the source {type(source).__name__}", source.close)
            if self._ranges is not None:
                closing.callback(self.attempt, "the names of modules", self._ranges.close)
            if self._watchdog is not None and not self.forked:
                closing.callback(self.attempt, "the watchdog", self._watchdog.close)
            if self._stacks is not None and not self.forked:
                closing.callback(self.attempt, "the samples of the stacks", self._stacks.close)

    def _note_calibration(self) -> None:
        session = self._session
        if self._options.calibrate and session is not None and not session.recorded:
            begun = 0 if self._calibration is None else self._calibration.steps
            self._warn(calibrated_only(begun, WAITING_STEPS))

    def _note_schedule(self) -> None:
        if self._session is None or self._options.schedule is None:
            return
        wanted = active_steps(self._options.schedule)
        note = steps_missed(
            wanted,
            self._session.complete_steps,
            self._session.announced_steps,
            recorded=self._session.recorded,
        )
        if note is not None:
            self._warn(note)

    def _keep(self) -> None:
        recorded = self.recorded
        self._note_limit()
        for source in (*self._sources, *self._pausing):
            with self._guarded(f"the source {type(source).__name__}"):
                if isinstance(source, Collections):
                    recorded.tables["collections"] = source.table()
                elif isinstance(source, WaitLines):
                    recorded.tables["host_sites"] = source.table()
                    if source.failure is not None:
                        self._failed("the lines of waits", source.failure)
                elif isinstance(source, FallbackLogs):
                    recorded.tables["warnings"] = source.table()
                elif isinstance(source, AttentionCalls):
                    recorded.tables["attention_calls"] = source.table()
                    if source.failure is not None:
                        self._failed("the calls of attention", source.failure)
                elif isinstance(source, GraphCaptures):
                    recorded.captures = source.count
                    recorded.node_annotations = source.annotations
                elif isinstance(source, CompileEvents):
                    recorded.tables.update(source.tables)
                elif isinstance(source, OptimizerSteps):
                    recorded.optimizers = source.table()
                elif isinstance(source, Children):
                    recorded.children = source.pids
                elif isinstance(source, ProcessGroups):
                    recorded.job = source.table()
                    if source.failure is not None:
                        self._failed("the names of process groups", source.failure)
                else:
                    recorded.tables["metrics"] = source.table()
                    recorded.notes += source.notes()
        if self._stacks is not None:
            with self._guarded("the samples of the stacks"):
                recorded.tables["stack_samples"] = self._stacks.table()
                if self._stacks.failure is not None:
                    raise self._stacks.failure
        if self._ranges is not None:
            with self._guarded("the facts of the run"):
                recorded.tables["model_modules"] = self._ranges.tree.table()
                recorded.facts = collect_facts(self._ranges.tree.descriptions())
                allocator = allocator_facts(self._allocator, allocator_counters())
                if allocator:
                    recorded.facts["allocator"] = allocator

    # What goes wrong

    @contextmanager
    def _guarded(self, what: str) -> Generator[None]:
        try:
            yield
        except Exception as error:  # the border to the traced program: it must not notice
            self._failed(what, error)

    def attempt(self, what: str, action: Callable[..., object], *args: object) -> None:
        """Do something that must not disturb the program when it fails."""
        with self._guarded(what):
            action(*args)

    def _failed(self, what: str, error: Exception) -> None:
        note = failed(what, error)
        if note not in self.recorded.notes:
            self._warn(note)
            _log.debug("tracer: %s failed", what, exc_info=error)

    def _warn(self, note: Note) -> None:
        self.recorded.notes.append(note)
        _log.warning("tracer: %s: %s", note.rule, note.message)


@functools.cache
def _keep_compiler_out() -> None:
    torch_private.keep_compiler_out(
        sys.modules[__name__],
        attention_facts,
        before_compiling,
        compiled_graphs,
        device_steps,
        generated_ranges,
        graph_captures,
        host_events,
        optimizer_steps,
        import_watch,
        fallback_logs,
        outside_compiled,
        run_facts,
        thread_notes,
        user_code,
        wait_lines,
    )


def _renew_lock() -> None:
    global _owner_lock
    _owner_lock = threading.RLock()


# A fork copies the lock as it is, without the thread that holds it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _release(capture: Capture) -> None:
    global _owner
    with _owner_lock:
        if _owner is capture:
            _owner = None


def _look_again_after_ns(limits: Limits) -> int:
    """A short limit is looked at more often."""
    seconds = 1.0 if limits.seconds is None else min(1.0, limits.seconds / 20)
    return int(seconds * 1e9)


def _free_memory_ratio() -> float:
    """Share of the machine's memory that is available; 1.0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 1.0
    fields = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
    total = fields.get("MemTotal", 0)
    return fields.get("MemAvailable", total) / total if total else 1.0

"""The profiler of torch: what to record at each level of detail, start, stop, export."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.autograd.profiler as autograd_profiler
from torch._C import _autograd
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from tracer.collectors import torch_private
from tracer.collectors.modules.calling_threads import CallingThreads, threads_now
from tracer.errors import CaptureError

Schedule = Callable[[int], ProfilerAction]

# Enough for the kinds of activity that say where device time went.
_DEVICE_ACTIVITIES = (
    "CONCURRENT_KERNEL",
    "GPU_MEMCPY",
    "GPU_MEMSET",
    "CUDA_RUNTIME",
    "CUDA_DRIVER",
)
_DEVICE_BUFFER_MB = 1024
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_CONFIG = "KINETO_CONFIG"
# What torch's profiler sets and does not take back.
_SET_BY_TORCH = ("DISABLE_CUPTI_LAZY_REINIT", "TEARDOWN_CUPTI", "TORCHINDUCTOR_CACHE_DIR")
_RECORDS = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
_SEARCHED_STEPS = 1_000_000


@dataclass(frozen=True)
class Switches:
    """What the profiler records."""

    host: bool = True
    shapes: bool = False
    stacks: bool = False
    memory: bool = False

    @property
    def all_threads(self) -> bool:
        """Memory is only reported for the thread that records, so it excludes the others."""
        return not self.memory


# Level of detail -> switches. `light` does not use the profiler.
SWITCHES: Mapping[str, Switches] = MappingProxyType(
    {
        "kernels": Switches(host=False),
        "modules": Switches(),
        "full": Switches(shapes=True, stacks=True, memory=True),
    }
)


class State(Enum):
    """Where a session stands."""

    NEW = "new"
    WAITING = "waiting"  # a schedule has not reached its active steps
    RECORDING = "recording"
    DONE = "done"
    EMPTY = "empty"  # it ended before an active step
    FAILED = "failed"


# Much longer than an operator takes from its beginning to its first record.
_LEAVES_S = 0.005
_OPEN = (State.WAITING, State.RECORDING)
_current: ProfilerSession | None = None  # the one that is open


def gpu_is_usable() -> bool:
    """Whether torch can use a GPU here; asks the driver only when torch was built for one."""
    if torch.version.cuda is None and torch.version.hip is None:
        return False
    return torch.cuda.is_available()


def active_steps(schedule: Schedule) -> int:
    """How many steps the first cycle of a schedule records; 0: it never records."""
    count = 0
    for step in range(_SEARCHED_STEPS):
        action = schedule(step)
        count += action in _RECORDS
        if action is ProfilerAction.RECORD_AND_SAVE:
            return count
    return 0


def _first_cycle(schedule: Schedule) -> Schedule:
    """The schedule, with nothing after its first cycle: one trace is one recording."""
    saved_at: list[int] = []

    def limited(step: int) -> ProfilerAction:
        if saved_at and step > saved_at[0]:
            return ProfilerAction.NONE
        action = schedule(step)
        if action is ProfilerAction.RECORD_AND_SAVE and not saved_at:
            saved_at.append(step)
        return action

    return limited


class ProfilerSession:
    """One recording. Made, started and ended once; `export` gives its file once."""

    def __init__(
        self,
        switches: Switches,
        *,
        gpu: bool,
        schedule: Schedule | None = None,
        on_state: Callable[[State], None] = lambda state: None,
    ) -> None:
        self.state = State.NEW
        self.yielded_to = ""  # what made it end early
        self._on_state = on_state
        self._gpu = gpu
        self._thread = self._made_in = threading.get_ident()
        self._switches = switches
        self.in_frames = switches.stacks
        self._all_threads = switches.all_threads and torch_private.records_all_threads()
        self._schedule = None if schedule is None else _first_cycle(schedule)
        self._step = 0
        self._own_call = False
        self._profile = self._make(switches)
        self._entries: dict[str, tuple[Any, Any]] = {}
        self._environment: dict[str, str | None] = {}

    def _make(self, switches: Switches) -> profile:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return profile(
                activities=_activities(switches, self._gpu),
                schedule=self._schedule,
                record_shapes=switches.shapes,
                with_stack=switches.stacks,
                profile_memory=switches.memory,
                experimental_config=torch_private.lean_config(all_threads=switches.all_threads),
            )

    def start(self) -> None:
        """Begin to record, or to wait as the schedule says."""
        if torch_private.profiler_is_on():
            raise CaptureError(
                "another profiler of torch is already recording in this process",
                rule="capture.busy",
            )
        global _current
        _leave_children_alone()
        self._thread, _current = threading.get_ident(), self
        if not self._all_threads and self._has_company():
            self._do_without_memory()
        self._environment = {name: os.environ.get(name) for name in _SET_BY_TORCH}
        try:
            self._patch_entries()
            self._run(self._profile.__enter__)
            self._set(self._expected_state())
        except BaseException:
            try:
                self._stop_by_force()
            finally:
                self._end(State.FAILED)
            raise

    def _has_company(self) -> bool:
        """Whether more threads than this one matter: who made the session ends it, too."""
        return self._thread != self._made_in or not CallingThreads().alone()

    def _do_without_memory(self) -> None:
        switches = replace(self._switches, memory=False)
        self._all_threads = switches.all_threads and torch_private.records_all_threads()
        if self._all_threads:
            self._profile = self._make(switches)

    def step(self) -> None:
        """A step of the program has ended: follow the schedule."""
        if self._schedule is None or self.state not in _OPEN or not self.can_stop_here:
            return
        self._step += 1
        ends = self._schedule(self._step) is ProfilerAction.NONE and self.state is State.RECORDING
        if ends:
            self._set(State.DONE)
            self._let_others_leave()
        (self._run if self._acts() else self._pass_on)(self._profile.step)
        if ends:
            self._run(self._close)
            self._end(State.DONE)
        else:
            self._set(self._expected_state())

    def _acts(self) -> bool:
        """Whether the profiler starts or stops something between the last step and this one."""
        assert self._schedule is not None
        before, now = self._schedule(self._step - 1), self._schedule(self._step)
        return before is not now or now is ProfilerAction.RECORD_AND_SAVE

    def stop(self) -> None:
        """Stop recording. After an error of the device what was recorded until then is kept."""
        if self.state not in _OPEN:
            return
        if not self.can_stop_here:
            # Not even its own thread can leave it after another profiler has run: torch crashes.
            self._end(State.FAILED)
            raise CaptureError("one thread was recorded, and another one ended the recording")
        ended = State.DONE if self.state is State.RECORDING else State.EMPTY
        try:
            self._set(ended)
            self._run(self._close)
        except BaseException:  # the device's, or an interruption: what was recorded is kept
            if ended is State.DONE:
                self._stop_by_force()
            raise
        finally:
            self._end(ended)

    def abandon(self) -> None:
        """Take the patches away and touch nothing else: a forked child has no recording."""
        if self.state in _OPEN:
            self._end(State.FAILED)

    @property
    def can_stop_here(self) -> bool:
        """Whether this thread may end the recording: without its data torch even crashes later."""
        return self._all_threads or self._thread == threading.get_ident()

    def _let_others_leave(self) -> None:
        """torch takes the records of all threads while others may be about to write theirs, and
        crashes then: they write no more first."""
        if self._all_threads and len(threads_now()) > 1:
            # Without a device its kinds are named too: else torch warns of their tracks.
            kinds = (ProfilerActivity.CUDA, ProfilerActivity.XPU) if not self._gpu else ()
            torch_private.hear_no_more([ProfilerActivity.CPU, *kinds])
            time.sleep(_LEAVES_S)

    def _close(self) -> None:
        self._let_others_leave()
        leave: Callable[..., None] = self._profile.__exit__
        leave(None, None, None)

    def _stop_by_force(self) -> None:
        """The device failed in the wait that comes before the end of a recording, or the program
        was interrupted while the profiler began or ended."""
        inner: Any = self._profile.profiler
        if inner is None or not torch_private.profiler_is_on():
            return
        inner.kineto_results = _autograd._disable_profiler()
        stopped: Callable[[], None] = autograd_profiler._run_on_profiler_stop
        stopped()

    def _end(self, state: State) -> None:
        global _current
        _current = None
        self._restore_entries()
        _restore_environment(self._environment)
        self._set(state)

    @property
    def waits(self) -> bool:
        """Whether nothing of the profiler is active: not yet, as its schedule says, or at all."""
        if self.state is State.NEW:
            return True
        return self.state is State.WAITING and self._is_idle(self._step)

    @property
    def waits_next(self) -> bool:
        """The same of the step after this one."""
        return self.state is State.WAITING and self._is_idle(self._step + 1)

    def _is_idle(self, step: int) -> bool:
        return self._schedule is not None and self._schedule(step) is ProfilerAction.NONE

    @property
    def recorded(self) -> bool:
        """Whether there is something to export."""
        return self.state is State.DONE

    @property
    def complete_steps(self) -> int:
        """Steps of the schedule that were recorded from their beginning to their end."""
        if self._schedule is None:
            return 0
        return sum(self._schedule(step) in _RECORDS for step in range(self._step))

    @property
    def announced_steps(self) -> int:
        """How often a step was announced."""
        return self._step

    def export(self, path: Path) -> None:
        """Write the recording as Chrome JSON, and give back its memory."""
        inner: Any = self._profile.profiler
        if not self.recorded or inner is None or inner.kineto_results is None:
            raise CaptureError("the profiler has no recording to export")
        self._profile.export_chrome_trace(str(path))
        self._profile.profiler = None

    def _expected_state(self) -> State:
        if self._schedule is None or self._schedule(self._step) in _RECORDS:
            return State.RECORDING
        return State.WAITING

    def _set(self, state: State) -> None:
        if state is not self.state:
            self.state = state
            self._on_state(state)

    def _run(self, call: Callable[[], object]) -> None:
        """Let the profiler act. It reads its settings then; to lay them out takes a millisecond."""
        with _quiet_environment(self._gpu), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._pass_on(call)

    def _pass_on(self, call: Callable[[], object]) -> None:
        self._own_call = True
        try:
            call()
        finally:
            self._own_call = False

    def _patch_entries(self) -> None:
        """Notice a profiler that starts while ours runs: ours must end first.

        torch would end ours without a word, and crash when its result is exported.
        """
        for name in torch_private.PROFILER_ENTRIES:
            original = getattr(autograd_profiler, name, None)
            if original is not None:
                entry = self._yielding(original)
                self._entries[name] = (original, entry)
                setattr(autograd_profiler, name, entry)

    def _yielding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def entry(*args: Any, **kwargs: Any) -> Any:
            if not self._own_call:
                self.end_early("a profiler of torch that the program started")
            return original(*args, **kwargs)

        return entry

    def _restore_entries(self) -> None:
        for name, (original, entry) in self._entries.items():
            if getattr(autograd_profiler, name) is entry:
                setattr(autograd_profiler, name, original)
        self._entries.clear()

    def end_early(self, reason: str) -> None:
        """Make room for another profiler; what was recorded until now is kept."""
        if self.state not in _OPEN:
            return
        self.yielded_to = reason
        try:
            self.stop()
        except Exception as error:  # the border to the traced program: its profiler starts anyway
            logging.getLogger("tracer").warning("the trace could not end in order: %s", error)


@functools.cache
def _leave_children_alone() -> None:
    """A forked child has no recording: what it does would be kept in its memory as long as it
    lives, and in the end it would wait for a thread of the profiler, which only its parent has."""
    let_exit = torch_private.exit_of_children()

    def in_child() -> None:
        if _current is not None and _current.state is State.RECORDING:
            torch_private.record_no_more(in_frames=_current.in_frames)
        let_exit()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


def _activities(switches: Switches, gpu: bool) -> list[Any]:
    host = [ProfilerActivity.CPU] if switches.host or not gpu else []
    if not gpu:
        return host
    if not switches.host and torch_private.has_activity_filters():
        return [{ProfilerActivity.CUDA: list(_DEVICE_ACTIVITIES)}]
    return [*host, ProfilerActivity.CUDA]


@contextlib.contextmanager
def _quiet_environment(gpu: bool) -> Generator[None]:
    """Variables that the profiler reads, while it reads them: no log lines, room for the device."""
    before = {name: os.environ.get(name) for name in (_LOG_LEVEL, _CONFIG)}
    os.environ.setdefault(_LOG_LEVEL, "99")
    config = _write_config() if gpu and _CONFIG not in os.environ else None
    if config is not None:
        os.environ[_CONFIG] = str(config)
    try:
        yield
    finally:
        _restore_environment(before)
        if config is not None:
            config.unlink(missing_ok=True)
            config.parent.rmdir()


def _restore_environment(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# The profiler remembers the name it was given first: a later session must find a file there again.
_config_path: list[Path] = []


def _write_config() -> Path | None:
    try:
        if _config_path:
            _config_path[0].parent.mkdir(mode=0o700)
        else:
            _config_path.append(Path(tempfile.mkdtemp(prefix="tracer-")) / "kineto.conf")
        _config_path[0].write_text(f"ACTIVITIES_MAX_GPU_BUFFER_SIZE_MB={_DEVICE_BUFFER_MB}\n")
    except OSError:
        return None
    return _config_path[0]

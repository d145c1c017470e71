"""`trace()`: live capture, as a block or around a function."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from tracer.collectors.logs.nccl_log import LiveNcclLog
from tracer.errors import UsageError
from tracer.live.options import Detail, Limits, Options
from tracer.near import hint

if TYPE_CHECKING:
    from torch import nn

    from tracer.analysis import Analysis
    from tracer.collectors.steps.announced_steps import Step
    from tracer.collectors.torch_profiler import Schedule
    from tracer.collectors.watchdog import WatchdogOptions
    from tracer.events import Trace
    from tracer.exporters.otlp.background import BackgroundExport
    from tracer.exporters.otlp.live import LiveExport
    from tracer.live.capture import Capture
    from tracer.live.report import Report
    from tracer.tui.beside import Beside

_log = logging.getLogger("tracer")
Function = TypeVar("Function", bound=Callable[..., Any])


def trace(
    model: nn.Module | None = None,
    *,
    detail: Detail = "modules",
    schedule: Schedule | None = None,
    out: str | Path | None = None,
    metrics: bool = True,
    limits: Limits | Mapping[str, Any] | None = None,
    calibrate: bool | None = None,
    otlp: bool | str | Mapping[str, Any] | None = None,
    watchdog: float | Mapping[str, Any] | None = None,
) -> Recording:
    """Record what PyTorch does in a block (`with trace() as t:`) or in a function (`@trace()`).

    `model`: name its modules before the recording; without it they are named at their first call.
    `detail`: "light", "kernels", "modules" or "full". `schedule`: a `torch.profiler.schedule`,
    which `t.step()` moves on. `out`: a directory to save the run in. `metrics`: sample the counters
    of the devices. `limits`: when the recording ends by itself, `seconds` and `free_memory_ratio`.
    `calibrate`: time a few steps before the profiler starts, to tell what it adds to them.
    `otlp`: send the run to an OpenTelemetry collector when it has ended, from a thread of its own:
    an address, arguments of `t.export_otlp`, or True for what the `OTEL_…` variables say.
    `watchdog`: seconds a step may take, or `{"seconds": …, "directory": …}`; when one takes longer,
    the stacks of all threads and the flight recorder are written there, for `tracer ranks`.
    """
    _check(model, detail, schedule, calibrate)
    options: dict[str, Any] = {
        "model": model,
        "detail": detail,
        "schedule": schedule,
        "metrics": metrics,
        "limits": limits,
        "calibrate": bool(calibrate),
        "watchdog": _watchdog_options(watchdog),
    }
    return Recording(options, None if out is None else Path(out), _live_export(otlp))


def _live_export(otlp: bool | str | Mapping[str, Any] | None) -> LiveExport | None:
    if otlp is None or otlp is False:
        return None
    from tracer.exporters.otlp.live import LiveExport

    return LiveExport(otlp)


def _watchdog_options(given: float | Mapping[str, Any] | None) -> WatchdogOptions | None:
    if given is None:
        return None
    from tracer.collectors.watchdog import WatchdogOptions

    return WatchdogOptions.of(given)


def _check(model: Any, detail: Any, schedule: Any, calibrate: Any) -> None:
    if model is not None and not hasattr(model, "named_modules"):
        raise UsageError("trace(model): no torch.nn.Module; around a function write @trace()")
    if detail not in get_args(Detail):
        near = hint(str(detail), get_args(Detail))
        raise UsageError(f"detail={detail!r}: choose one of {', '.join(get_args(Detail))}{near}")
    if schedule is not None and not callable(schedule):
        raise UsageError("schedule: give a torch.profiler.schedule(wait=…, warmup=…, active=…)")
    if schedule is not None and detail == "light":
        raise UsageError("detail 'light' uses no profiler: there is nothing to schedule")
    if calibrate and schedule is not None:
        raise UsageError("calibrate=True and a schedule: its wait steps are measured anyway")
    if calibrate and detail == "light":
        raise UsageError("detail 'light' uses no profiler: there is nothing to calibrate")


class Recording:
    """What `trace()` returns: it records while it is entered, and holds the result afterwards.

    Entered again, it forgets the last result and records a new one.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        out: Path | None = None,
        export: LiveExport | None = None,
    ) -> None:
        model = options.get("model")
        # The program decides how long its model lives.
        self._model = None if model is None else weakref.ref(model)
        self._options = {name: value for name, value in options.items() if name != "model"}
        self._out = out
        self._export = export
        self._context: dict[str, str] = {}
        self.delivery: BackgroundExport | None = None  # what `trace(otlp=…)` sends; `.wait()`
        self._capture: Capture | None = None
        self._running = False
        self.turn = threading.Lock()  # of calls of functions that it is around
        self._trace: Trace | None = None
        self._analysis: Analysis | None = None
        self._nccl_log = LiveNcclLog()
        self.saved = False  # whether the last recording lies in a directory
        self.replaced = ""  # what became of the run that was there, in words
        self._own: set[Path] = set()  # where this object saved: its runs take each other's place
        self._beside: Beside | None = None  # the explorer, opened while this runs

    def __enter__(self) -> Recording:
        self.start(sys._getframe(1))
        return self

    def start(self, caller: FrameType) -> None:
        """Begin to record. `caller` is named when another trace is refused because of this one."""
        from tracer.live.capture import Capture

        if self._running:
            raise UsageError("this trace is already running: make a second one with trace()")
        from tracer.live.graph_memory import settle

        settle()
        self._trace = self._analysis = None
        self.saved = False
        self._capture = Capture(
            _capture_options(self._options), f"{caller.f_code.co_filename}:{caller.f_lineno}"
        )
        try:
            self._begin(self._capture)
        except BaseException as error:  # an interruption: nobody would end what was begun
            self._running = False
            self._nccl_log.stop()
            self._capture.stop(error)
            raise

    def _begin(self, capture: Capture) -> None:
        capture.attempt("the log of NCCL", self._nccl_log.start)
        capture.start(None if self._model is None else self._model())
        self._running = True
        capture.attempt("the context of the run", self._find_context)
        if self._export is not None and self._options["detail"] == "light":
            capture.attempt("metrics over OTLP", self._send_metrics)

    def _find_context(self) -> None:
        from tracer.exporters.otlp.context import run_context

        self._context = run_context()

    def _send_metrics(self) -> None:
        from tracer.live.progress import LiveProgress

        assert self._export is not None and self._capture is not None
        self._export.send_metrics_of(LiveProgress(self._capture))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(error)

    def stop(self, error: BaseException | None = None, *, says: bool = True) -> None:
        """End the recording. `error`: what left the traced block. `says`: whether to say what
        became of a run in the place of this one; `replaced` tells else."""
        if self._capture is None or not self._running:
            return
        self._running = False
        self._nccl_log.stop()
        self._capture.stop(error)
        if self._capture.forked:
            return
        if self._capture.recorded.captures:
            from tracer.live.graph_memory import expect

            expect(self._read)
        if self._out is not None:
            save = self.save if says else self._save
            self._capture.attempt(f"saving the run to {self._out}", save, self._out)
        if self._export is not None:
            self._capture.attempt("the export over OTLP", self._begin_export, self._export)
        if self._beside is not None:
            self._capture.attempt("the explorer", self._finish_beside, self._beside)

    def _finish_beside(self, beside: Beside) -> None:
        if beside.is_open:
            beside.finish(self.analysis)

    def _begin_export(self, export: LiveExport) -> None:
        trace = self.trace  # the profiler gives its result once, so not from the other thread
        self.delivery = export.finish(
            lambda: self.analysis if self._trace is trace else _analysis_of(trace),
            beside=None if self._out is None else self._out.absolute().parent,
        )

    def __call__(self, function: Function) -> Function:
        """Record each call of a function; `function.recording` is this object."""
        from tracer.live.decorating import traced

        return traced(self, function)

    @property
    def running(self) -> bool:
        """Whether it records now."""
        return self._running

    def step(self, name: str = "step", *, phase: str = "") -> Step:
        """Announce a step: as a block, or bare, which ends one step and begins the next."""
        if self._capture is None or not self._running:
            raise UsageError("t.step() is for the program inside `with trace() as t:`")
        return self._capture.step(name, phase, sys._getframe(1))

    @property
    def trace(self) -> Trace:
        """What was recorded, as tables."""
        if self._capture is None:
            raise UsageError("nothing was traced yet: run the program inside `with trace() as t:`")
        if self._running:
            raise UsageError("the trace still runs: read its report after the `with` block")
        if self._trace is None:
            from tracer.live.building import build_trace
            from tracer.live.graph_memory import settle, with_graphs

            settle(self._read)
            recorded = self._capture.recorded
            built = with_graphs(build_trace(recorded), recorded.node_annotations)
            extra = {**built.meta.extra, **self._context}
            self._trace = replace(built, meta=replace(built.meta, extra=extra))
        return self._trace

    def _read(self) -> Trace:
        return self.trace

    @property
    def analysis(self) -> Analysis:
        """What was found out about it."""
        if self._analysis is None:
            self._analysis = _analysis_of(self.trace)
        return self._analysis

    @property
    def report(self) -> Report:
        """`print(t.report)`; a page in a notebook; `t.report.json()` for programs."""
        from tracer.live.report import Report

        return Report(self.analysis)

    def save(self, path: str | Path) -> None:
        """Keep the run in a directory that `tracer report` and `open` read. A run that is there
        already moves to `.old` beside it. The ranks of one job can give the same directory: each
        has a run of its own in it, for `tracer ranks`."""
        self._save(path)
        if self.replaced:
            _log.warning("tracer: %s", self.replaced)

    def _save(self, path: str | Path) -> None:
        from tracer.rank_store import rank_directory
        from tracer.store import save_run, what_gives_way

        target = rank_directory(self.trace.meta, path).absolute()
        keep = target not in self._own
        replaced = what_gives_way(target) if keep else ""
        save_run(self.trace, target, keep=keep)
        self.saved, self.replaced = True, replaced
        self._own.add(target)
        if target != Path(path).absolute() and self._capture is not None:
            rank = self.trace.meta.rank
            save_log = self._nccl_log.save
            self._capture.attempt("the log of NCCL", save_log, Path(path), rank, keep)

    def export_otlp(self, *args: Any, **kwargs: Any) -> Any:
        """Send the run to an OpenTelemetry collector, such as Jaeger."""
        from tracer.live.report import optional_function

        export = optional_function("tracer.exporters.otlp", "export_otlp")
        return export(self.analysis, *args, **kwargs)

    def open(self) -> Any:
        """Look at the run in the terminal explorer; returns when the user leaves it.

        While the trace still runs, the explorer opens beside the program, on a thread, and this
        returns at once: its steps so far, and all of it when the trace has ended. `wait()` of what
        is returned waits until the user leaves it, `close()` closes it.
        """
        from tracer.live.report import optional_function

        if not self._running or self._capture is None:
            return optional_function("tracer.tui.app", "open_analysis")(self.analysis)
        from tracer.live.following import LiveView

        beside = optional_function("tracer.tui.beside", "open_beside")
        self._beside = beside(LiveView(self._capture))
        return self._beside


def _analysis_of(trace: Trace) -> Analysis:
    from tracer.analyzers import analyze

    return analyze(trace)


def _capture_options(given: Mapping[str, Any]) -> Options:
    limits = given.get("limits")
    if limits is None or isinstance(limits, Mapping):
        try:
            limits = Limits(**(limits or {}))
        except TypeError:
            known = ", ".join(Limits.__dataclass_fields__)
            raise UsageError(f"limits={given['limits']!r}: known are {known}") from None
    values: dict[str, Any] = {**given, "limits": limits}
    return Options(**values)

"""What a reader must know about a live recording, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracer.events import Note


def refused(active: str, rule: str) -> Note:
    """Nothing is recorded, because something else records already."""
    message = f"nothing is recorded: {active}; the program runs on as it is"
    return Note(rule, message, detail={"active": active}, partial=True)


def yielded(active: str) -> Note:
    """The recording made room for another one."""
    message = f"the recording ended when {active} began: only one can be active"
    return Note("capture.busy", message, detail={"active": active}, partial=True)


def limit_reached(words: str, limit: str, after_ns: int, calls: int) -> Note:
    """The recording ended by itself, so long before the program's part did."""
    message = (
        f"the recording ended at its limit ({words}): what was done in the {after_ns / 1e9:.3g} s "
        f"after it is not in it, {calls} calls of models among it"
    )
    detail = {"limit": limit, "after_ns": after_ns, "calls_after": calls}
    return Note("capture.limit", message, detail=detail, partial=True)


def file_kept(path: Path) -> Note:
    """What the profiler wrote could not be read: it is not lost."""
    message = f"the file of the profiler is kept: {path}"
    return Note("capture.file_kept", message, detail={"path": str(path)}, partial=True)


def failed(what: str, error: BaseException) -> Note:
    """A part of the tracer failed; the program did not notice."""
    kind = type(error).__name__
    message = f"{what} failed: {kind}: {error}"
    return Note("capture.failed", message, detail={"exception": kind, "source": what}, partial=True)


def interrupted(error: BaseException) -> Note:
    """An exception or an exit left the traced block."""
    kind = type(error).__name__
    detail: dict[str, Any] = {"exception": kind}
    if isinstance(error, SystemExit):
        detail["exit_status"] = error.code if isinstance(error.code, int) else str(error.code)
    message = f"{kind} left the traced block: the recording ends there"
    return Note("capture.interrupted", message, detail=detail, partial=True)


def steps_missed(wanted: int, complete: int, announced: int, *, recorded: bool) -> Note | None:
    """A schedule whose active steps were not all reached."""
    if complete >= wanted:
        return None
    detail: dict[str, Any] = {"recorded": complete, "active": wanted}
    message = f"{complete} of {wanted} active steps recorded"
    if announced == 0:
        message = f"{complete} of {wanted} steps recorded, step() was never called"
    elif recorded:
        detail["partial_step"] = announced
        message += f"; step {announced} was cut off"
    else:
        message += f": step() was called {announced} times"
    return Note("capture.no_steps", message, complete, detail, partial=True)


def calibrated_only(steps: int, needed: int) -> Note:
    """The block ended while steps were still measured without the profiler."""
    message = (
        f"calibrate=True measures {needed} steps before it records, and the block began {steps}: "
        "let the loop run longer, or leave calibrate out"
    )
    detail = {"measured": steps, "needed": needed}
    return Note("capture.no_steps", message, 0, detail, partial=True)


def no_gpu_work_here(children: Sequence[int]) -> Note:
    """The work is done by other processes."""
    pids = ", ".join(map(str, children))
    message = (
        "no GPU work was launched in this process (0 launches) and no model was called in it; "
        f"it started other processes: {pids}. Trace inside a worker (`with trace()` or `tracer "
        "run` there), or report the trace that the engine's own profiler writes"
    )
    return Note(
        "capture.no_gpu_work_here", message, len(children), {"launches": 0, "pids": list(children)}
    )


def no_device_events(launches: int) -> Note:
    """The device side of the recorder was not available."""
    message = (
        f"{launches} launches recorded, 0 device events: the GPU's activity recorder was not "
        "available. Likely causes: no permission in this container or for this user (the driver "
        "option NVreg_RestrictProfilingToAdminUsers, or a missing CAP_SYS_ADMIN), or another tool "
        "holds it (Nsight, DCGM, another profiler). Host-side results are kept"
    )
    return Note("capture.no_device_events", message, launches, {"launches": launches}, partial=True)


def kernels_without_gpu() -> Note:
    """`kernels` was asked for where there is no GPU."""
    message = "detail 'kernels' without a GPU: operators on the CPU are recorded instead"
    return Note("capture.cpu_only", message)


def nested_steps(count: int) -> Note:
    """Steps that were announced inside others."""
    return Note("capture.nested_steps", f"{count} steps announced inside others count there", count)


def modules_not_seen(unseen: Sequence[str], named: int) -> Note:
    """Most modules of the models called wrote no range: compiled, scripted, or called otherwise."""
    message = (
        f"{len(unseen)} of {named} modules wrote no range of their own (compiled or scripted, or "
        "called by their forward()); their kernels are attributed by other evidence"
    )
    return Note("capture.modules_not_seen", message, len(unseen), {"first": list(unseen[:5])})


def modules_untold(calls: int) -> Note:
    """Calls of models that rested, like none that was looked at after all."""
    message = (
        f"{calls} calls of a model wrote no ranges of its modules, since calls before them got as "
        "much to do, but ran otherwise than these: their kernels are attributed by other evidence"
    )
    return Note("capture.modules_untold", message, calls)


def threads_not_recorded(count: int) -> Note:
    """Memory excludes other threads."""
    message = (
        f"operators of {count} other threads that called a model are not recorded: detail 'full' "
        "records memory, which torch reports for one thread alone; detail 'modules' records all"
    )
    return Note("capture.threads_not_recorded", message, count, partial=True)


def light() -> Note:
    """What detail `light` leaves out."""
    return Note("capture.light", "detail 'light' times steps and records no kernels")


def goes_on() -> Note:
    """What a run that is looked at while it runs cannot show yet."""
    return Note("capture.goes_on", "the program still runs: what is recorded comes when it ends")

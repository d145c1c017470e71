"""Running somebody's program in this process, as `python script.py` or `python -m module` would."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import glob
import io
import os
import runpy
import signal
import sys
import threading
import traceback
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from tracer.errors import UsageError
from tracer.near import nearest, offered

_OUR_MODULES = "tracer."


@dataclass(frozen=True)
class Program:
    """What to run: a script (a file, or a directory or archive with a `__main__`) or a module."""

    name: str
    arguments: tuple[str, ...]
    is_module: bool = False

    def check(self) -> None:
        """Complain about a script that is not there before anything is started."""
        if not self.is_module and not Path(self.name).exists():
            near = _near(Path(self.name))
            module = ".".join(Path(self.name).with_suffix("").parts)
            hint = f"did you mean {near}?" if near else f"a module runs with -m {module}"
            raise UsageError(f"{self.name}: no such script; {hint}")


def _near(wanted: Path) -> Path | None:
    """A script of a like name in its folder, or one of that name in a folder below."""
    folder = wanted.parent if wanted.parent.is_dir() else Path()
    scripts = offered(wanted.name, (path.name for path in sorted(folder.glob("*.py"))))
    like = nearest(wanted.name, scripts)
    if like:
        return folder / like
    below = sorted(folder.glob(f"*/{glob.escape(wanted.name)}"))
    return next((path for path in below if not path.parent.name.startswith(".")), None)


@dataclass(frozen=True)
class Outcome:
    """How a program ended. `error`: what it left behind, an exit with status 0 excepted."""

    status: int
    error: BaseException | None = None


def run_program(program: Program) -> Outcome:
    """Run it to its end, its own threads included; its exceptions are reported as Python does."""
    ending = _Ending()
    atexit.register(ending.end)  # before the program registers its own, and so after them
    outcome = _run(program)
    if isinstance(outcome.error, KeyboardInterrupt):
        ending.number = signal.SIGINT
    _wait_for_threads()
    return outcome


def _run(program: Program) -> Outcome:
    try:
        _execute(program)
        return Outcome(0)
    except SystemExit as error:
        status = _exit_status(error.code)
        return Outcome(status, error if status else None)
    except BaseException as error:  # whatever the program raises is the program's
        _report(error)
        return Outcome(1, error)


def _execute(program: Program) -> None:
    """Everything a new interpreter would set up for it, then the program."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv[:] = [program.name, *program.arguments]
    if program.is_module:
        sys.argv[0] = "-m"
        _set_first_path(os.getcwd())
        _run_as_main(program.name, True)
    elif Path(program.name).is_dir() or not _is_source(program.name):
        _set_first_path(os.path.abspath(program.name))
        _run_as_main("__main__", False)
    else:
        _set_first_path(str(Path(program.name).resolve().parent))
        _execute_source(program.name, main)


def _is_source(name: str) -> bool:
    """Whether a file is source text: an archive or compiled code is left to `runpy`."""
    with io.open_code(name) as file:
        return file.read(2) != b"PK"


def _execute_source(name: str, main: types.ModuleType) -> None:
    path = os.path.abspath(name)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main.__dict__.update(
        __file__=path,
        __cached__=None,
        __loader__=SourceFileLoader("__main__", path),
        __package__=None,
        __spec__=None,
    )
    exec(code, main.__dict__)


def _run_as_main(name: str, alter_argv: bool) -> None:
    """What the interpreter itself calls for `-m`, so that `__main__` is as it makes it."""
    run: Any = runpy._run_module_as_main  # type: ignore[attr-defined]
    run(name, alter_argv)


def _set_first_path(path: str) -> None:
    """Put the program's folder where that of `tracer` stands."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = path


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """Print the traceback as the interpreter does, without our frames."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames):
        frames = frames.tb_next
    error.__traceback__ = frames
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, frames
    try:
        sys.excepthook(type(error), error, frames)
    except BaseException as broken:  # the program's own hook: Python reports both
        print("Error in sys.excepthook:", file=sys.stderr)
        traceback.print_exception(broken)
        print("\nOriginal exception was:", file=sys.stderr)
        traceback.print_exception(error)


def _is_ours(frames: types.TracebackType) -> bool:
    return str(frames.tb_frame.f_globals.get("__name__", "")).startswith(_OUR_MODULES)


def _wait_for_threads() -> None:
    """The interpreter waits for these before it ends; what they compute belongs to the program.

    Workers of an executor end only when the interpreter tells them to: it waits for those itself.
    """
    from concurrent.futures.thread import _threads_queues

    try:
        while waiting := [t for t in _program_threads() if t not in _threads_queues]:
            waiting[0].join()
    except KeyboardInterrupt:
        return


def _program_threads() -> list[threading.Thread]:
    here = threading.current_thread()
    main = threading.main_thread()
    return [t for t in threading.enumerate() if not t.daemon and t is not here and t is not main]


class _Ending:
    """Ends the process by a signal, when everything that runs at its exit has run."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None

    def end(self) -> None:
        if self.number is None:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # it may be closed
                stream.flush()
        signal.signal(self.number, signal.SIG_DFL)
        os.kill(os.getpid(), self.number)

"""`tracer open`: the explorer in the terminal, or in a browser."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.commands.exits import PARTIAL
from tracer.errors import EmptyTraceError, NotATraceError
from tracer.exporters.names import inert
from tracer.held_ranks import split_rank

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.tui.session import Comparison, Report, Session, Source

NAME = "open"
HELP = "explore a recording in the terminal: steps, timeline, modules, kernels, findings"

_ANNOUNCED_CELLS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tracer open`."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="recordings, or a directory")
    parser.add_argument("--web", action="store_true", help="serve it to a browser on this machine")
    parser.add_argument("--port", type=int, default=8000, help="with --web: the port (8000)")
    parser.add_argument(
        "--ascii",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="draw with ASCII alone (chosen by itself where the locale is not UTF-8)",
    )
    parser.add_argument("--light", action=argparse.BooleanOptionalAction, default=None,
                        help="colours for a light background")  # fmt: skip
    parser.add_argument("--no-mouse", action="store_true", help="leave the mouse to the terminal")
    parser.add_argument(
        "--text",
        action="store_true",
        help="no screen: one part after another as plain lines, for screen readers "
        "(chosen by itself with TERM=dumb)",
    )


def run(args: argparse.Namespace) -> int:
    """Explore; returns 4 when the recording was damaged or cut."""
    files = readable_files(args.paths)
    if args.web:
        return _serve(args)
    sources = [source_of(path) for path in files]
    if args.text or _is_dumb():
        return _tell(sources, args)
    return _explore(sources, args)


def readable_files(paths: list[str]) -> list[Path]:
    """The recordings at these paths, judged by their first bytes, before the screen is taken.

    Other files of a directory are left out; a path that is no recording is an error.
    """
    from tracer.sources import each_recording_once, find_sources, is_run, none_in, only_new

    files: list[Path] = []
    seen: set[str] = set()
    for path in each_recording_once([Path(name) for name in paths]):
        listed = path.is_dir() and not is_run(path)
        found = [file for file in find_sources(path) if _is_recording(file, listed)]
        if not found:
            raise none_in(path)
        files += only_new(found, seen)
    return files


def _is_recording(path: Path, listed: bool) -> bool:
    try:
        _check(path)
    except (NotATraceError, EmptyTraceError):
        if listed:
            return False
        raise
    return True


def _check(path: Path) -> None:
    """Raise what makes a path no recording."""
    from tracer.collectors.sniff import sniff
    from tracer.sources import is_run

    if path.is_dir():
        if not is_run(path):
            raise NotATraceError(f"{path}: a directory that is no saved run")
        return
    known = sniff(path)
    if known.reader is None:
        raise known.refusal(path)


def source_of(path: Path) -> Source:
    """A recording that is read when the explorer asks for it."""
    from tracer.tui.session import Source

    file, _ = split_rank(path)
    size = file.stat().st_size if file.is_file() else None
    return Source(str(path), _reader(path), size)


def _compare(session: Session) -> Comparison | None:
    from tracer.commands.open_ranks import compare_open

    return compare_open(session)


def _reader(path: Path) -> Callable[[Report], Analysis]:
    def read(report: Report) -> Analysis:
        from tracer.analyzers import analyze
        from tracer.sources import open_source

        trace = open_source(path, lambda done, total: report("reading", done, total))
        report("accounting", 0, 0)
        return analyze(trace)

    return read


def _explore(sources: list[Source], args: argparse.Namespace) -> int:
    with _announced(sources):
        from tracer.tui.app import Explorer, run_explorer
        from tracer.tui.terminal import look_for

    look = look_for(os.environ, args.ascii, args.light)
    explorer = Explorer(sources, look=look, compare=_compare)
    status = run_explorer(explorer, mouse=not args.no_mouse)
    if status:
        return status
    analyses = [r.analysis for r in explorer.session.recordings if r.analysis is not None]
    return PARTIAL if any(a.damaged for a in analyses) else 0


@contextmanager
def _announced(sources: list[Source]) -> Generator[None]:
    """Say what is opened while the screen library loads, which takes longer than it may."""
    visible = sys.stderr.isatty()
    if visible:
        name = Path(sources[0].name).name
        more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        size = sources[0].size_bytes
        words = f"opening {inert(name)}{more}" + (f", {size:,} bytes" if size else "")
        print(f"\r\x1b[K{words[:_ANNOUNCED_CELLS]} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def _tell(sources: list[Source], args: argparse.Namespace) -> int:
    from tracer.tui.linear import tell

    return tell(sources, ascii=args.ascii, compare=_compare)


def _serve(args: argparse.Namespace) -> int:
    from tracer.tui.web import serve

    command = ["open", *args.paths, *(["--ascii"] if args.ascii else [])]
    serve(command, args.port)
    return 0

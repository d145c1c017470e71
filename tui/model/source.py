"""Source lines around a place, where the file is there to be read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rich.text import Text

from tracer.findings import Where
from tracer.tui.look import Look
from tracer.tui.model.lines import BOLD, DIM, Line, labelled, plain, wrapped
from tracer.tui.model.table import cut_end

_MOST_BYTES = 4 << 20
_TAB = "    "
_MOST_DECORATORS = 12
_DEFINITION = re.compile(r"\s*(?:async\s+)?def\s+(\w+)")


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file around one of them; `origin` says where the file was found."""

    path: str
    first: int
    lines: tuple[str, ...]
    marked: int
    origin: str


@lru_cache(maxsize=64)
def excerpt(
    file: str, line: int, function: str = "", around: int = 4, recording: str = ""
) -> Excerpt | None:
    """The lines around a place; None when the file is not here, or is not the recorded one."""
    for path, origin in _candidates(file, recording):
        text = _read(path)
        lines = [] if text is None else text.splitlines()
        if not 1 <= line <= len(lines) or not _is_in(lines, line, function):
            continue
        first = max(line - around, 1)
        return Excerpt(str(path), first, tuple(lines[first - 1 : line + around]), line, origin)
    return None


def _is_in(lines: Sequence[str], line: int, function: str) -> bool:
    """Whether a line belongs to the function that the recording names there: another version of
    the file would show lines that never ran. Where a function begins may be its decorator."""
    if not function.isidentifier():
        return True
    below = lines[line - 1 : line - 1 + _MOST_DECORATORS]
    if lines[line - 1].lstrip().startswith(("@", "def ", "async ")):
        found = next((m for text in below if (m := _DEFINITION.match(text))), None)
    else:
        found = next((m for text in lines[line - 1 :: -1] if (m := _DEFINITION.match(text))), None)
    return found is not None and found[1] == function


def _candidates(file: str, recording: str) -> Iterator[tuple[Path, str]]:
    """Where the file of a recording may be, the likeliest first. Profilers cut paths at the
    search path of the program, so the same is tried with ours."""
    path = Path(file)
    if path.is_absolute():
        yield path, ""
        return
    yield path, "found in the working directory"
    if recording:
        yield Path(recording).parent / path, "found beside the recording"
    for entry in sys.path:
        if entry:
            yield Path(entry) / path, "the copy of this environment"


def _read(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None


def source_lines(
    look: Look, where: Where, width: int, recording: str = "", around: int = 4, label: str = ""
) -> list[Line]:
    """The place and the lines around it, the line itself marked; or why they are not shown."""
    if where.file is None:
        said = "line not recorded (detail full records Python frames)"
        return labelled(label, said, width) if label else [plain(f"   {said}", DIM)]
    place = f"{where.file}:{where.line}" if where.line is not None else where.file
    if where.function:
        place += f"  in {where.function}"
    shown = look.name(place)
    lines = labelled(label, shown, width) if label else wrapped(shown, width)
    lines = [Line(text.text, None, place) for text in lines]
    function = (where.function or "").rpartition(".")[2]
    found = None
    if where.line is not None:
        found = excerpt(where.file, where.line, function, around, recording)
    if found is None:
        return [*lines, plain("   this file, as recorded, is not on this machine", DIM)]
    lines += [plain(f"   {found.origin}", DIM)] if found.origin else []
    return lines + [
        _code_line(look, found.first + at, text, found.marked, width)
        for at, text in enumerate(found.lines)
    ]


def _code_line(look: Look, number: int, text: str, marked: int, width: int) -> Line:
    here = number == marked
    shown = look.name(text.rstrip("\n").replace("\t", _TAB))
    line = Text(f"   {'>' if here else ' '}{number:>6} ", BOLD if here else DIM)
    room = max(width - line.cell_len, 8)
    shown = cut_end(shown, room)
    return Line(line.append(shown, BOLD if here else DIM))

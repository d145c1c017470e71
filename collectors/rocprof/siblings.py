"""Which files are tables of one recording: rocprofv3 writes one for each domain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracer.collectors.rocprof.content import Content
from tracer.collectors.rocprof.csv_lines import columns_of
from tracer.collectors.rocprof.tables import (
    CALLS,
    TIMELINES,
    kind_of,
    may_be_of_one_process,
    read_table,
    table_of,
)
from tracer.collectors.rocprof.words import words_of
from tracer.collectors.sniff import HEAD_BYTES, read_head, sniff
from tracer.errors import InputError

_SEPARATORS = re.compile(r"[\W_]+")
# Words that say which table a file is, and none of which run.
_WORDS = words_of(
    "kernel kernels dispatch dispatches kerneltrace hip hipapi hsa hsaapi core amd ext runtime "
    "compiler api memory mem copy copies memcpy memorycopy allocation allocations alloc marker "
    "markers roctx rccl nccl rocdecode rocjpeg scratch agent agents info agentinfo counter "
    "counters collection trace traces regions"
)
_ENDINGS = (".gz", ".csv")
_JSON = ("_results.json", "_results.json.gz")


@dataclass(frozen=True)
class Sibling:
    """A table: its file, what it is, and what the names of its recording's files share."""

    path: Path
    kind: str
    run: tuple[str, ...]


def sibling_of(path: Path) -> Sibling | None:
    """The table that a file is; None for anything else."""
    try:
        kind = kind_of(columns_of(read_head(path)))
    except InputError:
        return None
    return None if kind is None else Sibling(path, kind, _run_of(path.name))


def _run_of(name: str) -> tuple[str, ...]:
    """The words of a file's name that do not say which table it is."""
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    words = _SEPARATORS.split(name.lower())
    return tuple(word for word in words if word and word not in _WORDS)


def tables_beside(path: Path) -> list[Sibling]:
    """The table at a path first, then those that by their names are of its recording, the plainest
    first."""
    own = sibling_of(path)
    if own is None:
        return []
    around = [found for found in _tables_in(path.parent) if found.path.name != path.name]
    kept = [own]
    for other in around:
        if other.run == own.run and not any(_packed(other, one) for one in kept):
            kept.append(other)
    return [own, *sorted(kept[1:], key=_plainest)]


def _packed(one: Sibling, other: Sibling) -> bool:
    """Whether both are the same file, of which one is packed."""
    names = {one.path.name.removesuffix(".gz"), other.path.name.removesuffix(".gz")}
    return len(names) == 1


def _tables_in(directory: Path) -> list[Sibling]:
    try:
        entries = sorted(entry for entry in directory.iterdir() if _may_be_table(entry))
    except OSError:
        return []
    found = (sibling_of(entry) for entry in entries)
    return [sibling for sibling in found if sibling is not None]


def _may_be_table(path: Path) -> bool:
    name = path.name.lower().removesuffix(".gz")
    return name.endswith(".csv") and not name.startswith(".") and path.is_file()


def one_for_each_recording(paths: Sequence[Path]) -> list[Path]:
    """These paths, and of the tables of each recording one, of the plainest kind. Tables beside
    the JSON of the same run are left to it."""
    tables = [found for path in paths if _may_be_table(path) and (found := sibling_of(path))]
    told = {(path.parent, _run_of_json(path)) for path in paths if tables and _is_json(path)}
    kept: dict[tuple[Path, tuple[str, ...]], list[Sibling]] = {}
    for table in sorted(tables, key=_plainest):
        place = table.path.parent, table.run
        firsts = kept.setdefault(place, [])
        if place not in told and not any(_are_one(first, table) for first in firsts):
            firsts.append(table)
    left = {table.path for table in tables}
    left -= {table.path for firsts in kept.values() for table in firsts}
    return [path for path in paths if path not in left]


def _are_one(one: Sibling, other: Sibling) -> bool:
    """Whether two tables are of one recording. What their beginnings have in common settles it."""
    if _packed(one, other):
        return True
    if one.kind == other.kind != CALLS:
        return False
    if may_be_of_one_process(*(table_of(_beginning(s.path)) for s in (one, other))):
        return True
    return may_be_of_one_process(*(read_table(s.path) for s in (one, other)))


def _beginning(path: Path) -> Content:
    head = read_head(path)
    return Content(head, len(head) >= HEAD_BYTES)


def _is_json(path: Path) -> bool:
    try:
        return path.name.endswith(_JSON) and sniff(path).name == "rocprof-json"
    except InputError:
        return False


def _run_of_json(path: Path) -> tuple[str, ...]:
    return _run_of(path.name.removesuffix(".gz").removesuffix("_results.json"))


def _plainest(table: Sibling) -> int:
    return TIMELINES.index(table.kind) if table.kind in TIMELINES else len(TIMELINES)

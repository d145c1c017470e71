"""Dumps of PyTorch's flight recorder: what each rank had called when it hung.

A dump is a pickle. It is read as data alone: any reference to a class or function is refused.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NoReturn

from tracer.errors import InputError, NotATraceError, TooLargeError
from tracer.findings import Where
from tracer.rank_records import FlightDump, FlightEntry

MAX_BYTES = 1 << 30
_RANK = re.compile(r"(?:rank[-_.]?|[-_.])(\d+)(?:\.(?:pickle|pkl|json|bin))?$", re.IGNORECASE)
_STATES = ("scheduled", "started", "completed")


class _DataOnly(pickle.Unpickler):
    """Reads plain data; whatever names code is refused before it is looked up."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"it holds code ({module_name}.{global_name})")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def read_flight_dump(path: str | PathLike[str]) -> FlightDump:
    """Read the dump of one rank; the file's name tells which."""
    name = fspath(path)
    content = _content(Path(path))
    values = _loaded(name, content)
    entries = values.get("entries") if isinstance(values, dict) else None
    if not isinstance(values, dict) or not isinstance(entries, list):
        raise NotATraceError(f"{name}: no flight-recorder dump: it holds no list of entries")
    return FlightDump(
        path=name,
        rank=_rank(values, Path(name).name),
        version=str(values.get("version", "")),
        entries=tuple(_entry(entry) for entry in entries if isinstance(entry, dict)),
        members=_members(values.get("pg_config")),
        last_completed=_counters(values.get("pg_status"), "last_completed_collective"),
        last_enqueued=_counters(values.get("pg_status"), "last_enqueued_collective"),
    )


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TooLargeError(f"{path}: larger than a flight-recorder dump ever is")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def _loaded(name: str, content: bytes) -> Any:
    if content.lstrip()[:1] == b"{":
        try:
            return json.loads(content)
        except ValueError as error:
            raise NotATraceError(f"{name}: no flight-recorder dump ({error})") from None
    try:
        return _DataOnly(io.BytesIO(content)).load()
    except pickle.UnpicklingError as error:
        raise NotATraceError(f"{name}: refused: {error}; a flight-recorder dump is data") from None
    # What a damaged pickle raises is whatever its broken instructions run into.
    except (
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        ImportError,
        MemoryError,
        OverflowError,
        RecursionError,
    ) as error:
        what = f"{type(error).__name__}: {error}"
        raise NotATraceError(f"{name}: no flight-recorder dump, or a cut one ({what})") from None


def _rank(values: Mapping[str, Any], name: str) -> int | None:
    said = values.get("rank")
    if isinstance(said, int) and not isinstance(said, bool):
        return said
    found = _RANK.search(name)
    return int(found.group(1)) if found else None


def _entry(entry: Mapping[str, Any]) -> FlightEntry:
    group, description = _group(entry.get("process_group"))
    is_p2p = entry.get("is_p2p") is True
    sequence = entry.get("p2p_seq_id") if is_p2p else entry.get("collective_seq_id")
    state = str(entry.get("state") or "")
    return FlightEntry(
        group=group or str(entry.get("pg_id", "")),
        description=description,
        sequence=_whole(sequence, -1),
        is_p2p=is_p2p,
        operation=str(entry.get("profiling_name") or ""),
        state=state if state in _STATES else "scheduled",
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        input_types=_texts(entry.get("input_dtypes")),
        frames=_frames(entry.get("frames")),
        record=_whole(entry.get("record_id"), -1),
        created_ns=_optional(entry.get("time_created_ns")),
        timeout_ms=_optional(entry.get("timeout_ms")),
    )


def _group(value: Any) -> tuple[str, str]:
    if isinstance(value, (tuple, list)) and value:
        return str(value[0]), str(value[1]) if len(value) > 1 else ""
    return (str(value), "") if value is not None else ("", "")


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _optional(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    shapes = value if isinstance(value, (list, tuple)) else ()
    return tuple(
        tuple(_whole(length, -1) for length in shape)
        for shape in shapes
        if isinstance(shape, (list, tuple))
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(text) for text in value) if isinstance(value, (list, tuple)) else ()


def _frames(value: Any) -> tuple[Where, ...]:
    frames = value if isinstance(value, (list, tuple)) else ()
    return tuple(
        Where(
            file=str(frame.get("filename", "")),
            line=_optional(frame.get("line")),
            function=str(frame.get("name", "")),
        )
        for frame in frames
        if isinstance(frame, dict)
    )


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    """Ranks of each group; they are written as text."""
    found: dict[str, tuple[int, ...]] = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, str):
            try:
                ranks = json.loads(ranks)
            except ValueError:
                ranks = None
        if isinstance(ranks, Sequence) and all(isinstance(rank, int) for rank in ranks):
            found[str(name)] = tuple(ranks)
    return found


def _counters(status: Any, field: str) -> dict[str, int]:
    if not isinstance(status, dict):
        return {}
    return {
        str(name): _whole(group.get(field), -1)
        for name, group in status.items()
        if isinstance(group, dict)
    }

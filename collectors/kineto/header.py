"""What a Kineto file says beside its events: devices, ranks, clock, switches."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tracer.events import NONE, SIDE_TABLES, TraceMeta, make_table

Header = Mapping[str, Any]

_JSON = json.JSONDecoder(strict=False)
_KEY = re.compile(r'"([A-Za-z_]\w*)"\s*:\s*')
_BASE = "baseTimeNanoseconds"
_SWITCHES = {"shapes": "record_shapes", "stacks": "with_stack", "memory": "profile_memory"}
_SHOWN_BY = {"shapes": "shapes", "stacks": "frames", "memory": "memory"}
_READ = frozenset({"deviceProperties", "distributedInfo", "traceEvents", "displayTimeUnit", _BASE})
_ENGINES = ("vllm", "sglang", "tensorrt_llm")
_TOO_LONG = 10_000  # characters of a header field that are not worth keeping


def read_header(head: bytes, tail: bytes) -> dict[str, Any]:
    """The fields before and after the list of events, as far as they can be read."""
    return {**_fields(head, b"}"), **_fields(b"{" + tail.lstrip(b", \r\n\t"), b"")}


def _fields(text: bytes, closing: bytes) -> dict[str, Any]:
    readable = (text.rstrip(b", \r\n\t") + closing).decode("utf-8-sig", "replace")
    try:
        found = json.loads(readable, strict=False)
    except (ValueError, RecursionError):
        return _scraped(readable)
    return found if isinstance(found, dict) else {}


def _scraped(text: str) -> dict[str, Any]:
    """The fields of a header that is not valid JSON, one by one; a nested one may come along."""
    fields: dict[str, Any] = {}
    position = 0
    while (key := _KEY.search(text, position)) is not None:
        position = key.end()
        try:
            value, position = _JSON.raw_decode(text, position)
        except (ValueError, RecursionError):
            continue
        fields.setdefault(key.group(1), value)
    return fields


def base_ns(header: Header) -> int | None:
    """Nanoseconds that the clock of the events begins at; None when the file does not say."""
    return _whole(header.get(_BASE))


def read_meta(
    header: Header, path: str, clock: str, tables: Mapping[str, Any], *, modules: bool
) -> TraceMeta:
    """Where the trace comes from. `tables` and `modules`, whether there are ranges of modules, show
    what was recorded where the header does not."""
    ranks = _unquoted(header.get("distributedInfo"))
    ranks = ranks if isinstance(ranks, dict) else {}
    version = header.get("pytorch_version") or header.get("torch_version")
    backend = ranks.get("backend")
    return TraceMeta(
        source_kind="kineto",
        path=path,
        framework=f"torch {version}" if version else None,
        rank=_whole(ranks.get("rank")),
        world_size=_whole(ranks.get("world_size")),
        backend=backend if isinstance(backend, str) else None,
        process_groups=tuple(_process_groups(ranks.get("pg_config"))),
        clock=clock,
        recorded={**_recorded(header, tables), "modules": modules},
        facts=_facts(header, ranks),
        extra=_extra(header),
    )


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def _process_groups(config: Any) -> list[Mapping[str, Any]]:
    """Groups of ranks; some versions write the list, or the ranks in it, as a string."""
    groups: list[Mapping[str, Any]] = []
    for group in _unquoted(config) if isinstance(_unquoted(config), list) else []:
        if isinstance(group, dict):
            groups.append({**group, "ranks": _unquoted(group.get("ranks"))})
    return groups


def _unquoted(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _recorded(header: Header, tables: Mapping[str, Any]) -> dict[str, bool]:
    recorded = {name: bool(header.get(switch)) for name, switch in _SWITCHES.items()}
    for name, table in _SHOWN_BY.items():
        recorded[name] = recorded[name] or table in tables
    return recorded


def _facts(header: Header, ranks: Mapping[str, Any]) -> dict[str, Any]:
    versions = {
        key.removesuffix("_version"): str(value)
        for key, value in {**header, **ranks}.items()
        if key.endswith("_version") and isinstance(value, str | int | float)
    }
    facts: dict[str, Any] = {"versions": versions} if versions else {}
    engine = next((name for name in _ENGINES if name in versions), None)
    return {**facts, "engine": engine} if engine else facts


def _extra(header: Header) -> dict[str, Any]:
    """The other fields as they are, but for the very long ones."""
    return {
        key: value
        for key, value in header.items()
        if key not in _READ and len(str(value)) <= _TOO_LONG
    }


def devices(header: Header, seen: list[int]) -> Any:
    """The devices that the header describes, and those that only events name. Events may count the
    devices of the machine, and the header those that the process sees: where it describes one kind
    alone, the others are of it."""
    described = {}
    properties = header.get("deviceProperties")
    for device in properties if isinstance(properties, list) else []:
        index = _whole(device.get("id")) if isinstance(device, dict) else None
        if index is not None:
            described[index] = _device(index, device)
    kinds = [{**device, "device": NONE} for device in described.values()]
    like = kinds[0] if kinds and all(kind == kinds[0] for kind in kinds) else _device(NONE, {})
    for index in seen:
        described.setdefault(index, {**like, "device": index})
    rows = [described[index] for index in sorted(described)]
    columns = SIDE_TABLES["devices"]
    return make_table(columns, {name: [row[name] for row in rows] for name in columns})


def _device(index: int, found: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {
        "memory_bytes": "totalGlobalMem",
        "sm_count": "numSms",
        "major": "computeMajor",
        "minor": "computeMinor",
    }
    values = {column: _whole(found.get(key)) for column, key in numbers.items()}
    known = {column: NONE if value is None else value for column, value in values.items()}
    return {"device": index, "name": str(found.get("name", "")), **known}

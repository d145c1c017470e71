"""What a run is a run of: resource attributes of service, host, process and GPU."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from urllib.parse import unquote

from tracer.analysis import Analysis
from tracer.exporters.otlp.protobuf import Value
from tracer.version import VERSION

SCOPE = "llm-stack-tracer"
DEFAULT_SERVICE = "tracer"
_VENDORS = ("NVIDIA", "AMD", "Intel")


def resource_attributes(
    analysis: Analysis,
    *,
    service_name: str | None = None,
    extra: Mapping[str, Value] | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Value | None]:
    """Resource attributes of one recording. Arguments win over `OTEL_…` variables, and these over
    what the recording says; what nobody knows is absent."""
    variables = os.environ if environ is None else environ
    given = {**environment_attributes(variables), **(extra or {})}
    named = service_name or variables.get("OTEL_SERVICE_NAME") or given.get("service.name")
    meta = analysis.trace.meta
    return {
        "service.name": named or DEFAULT_SERVICE,
        "telemetry.sdk.name": SCOPE,
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": VERSION,
        "host.name": socket.gethostname() if _live_here(analysis) else None,
        "process.pid": _process(analysis),
        **_hardware(analysis),
        "tracer.rank": meta.rank,
        "tracer.world_size": meta.world_size,
        **{key: value for key, value in given.items() if key != "service.name"},
    }


def live_attributes(
    service_name: str | None, extra: Mapping[str, Value] | None
) -> dict[str, Value | None]:
    """Resource attributes of the run in this process, for metrics while it goes on."""
    given = {**environment_attributes(os.environ), **(extra or {})}
    named = service_name or os.environ.get("OTEL_SERVICE_NAME") or given.get("service.name")
    rank = os.environ.get("RANK", "")
    return {
        "service.name": named or DEFAULT_SERVICE,
        "telemetry.sdk.name": SCOPE,
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": VERSION,
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        "tracer.rank": int(rank) if rank.isdecimal() else None,
        **{key: value for key, value in given.items() if key != "service.name"},
    }


def environment_attributes(environ: Mapping[str, str]) -> dict[str, Value]:
    """`OTEL_RESOURCE_ATTRIBUTES`; a malformed value is discarded whole, as the standard says."""
    parsed: dict[str, Value] = {}
    for item in filter(None, (environ.get("OTEL_RESOURCE_ATTRIBUTES") or "").split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            return {}
        parsed[unquote(key.strip())] = unquote(value.strip())
    return parsed


def _live_here(analysis: Analysis) -> bool:
    """A live capture that was not loaded from a file: this host is the one that was traced."""
    meta = analysis.trace.meta
    return meta.source_kind == "live" and meta.path is None


def _process(analysis: Analysis) -> int | None:
    found = {pid for pid in analysis.trace.table("threads")["pid"].tolist() if pid > 0}
    return found.pop() if len(found) == 1 else None


def _hardware(analysis: Analysis) -> dict[str, Value | None]:
    """`hw.*` of the device that worked; of several only what they have in common."""
    devices = analysis.trace.table("devices")
    worked = devices[devices["device"].isin(analysis.work["device"].unique())]
    names = {str(name) for name in worked["name"] if str(name)}
    one = worked["device"].tolist() if len(worked) == 1 else []
    if len(names) != 1:
        return {}
    return device_attributes(names.pop(), device_uuid(analysis, one[0]) if one else None)


def device_attributes(name: str, uuid: str | None) -> dict[str, Value | None]:
    """`hw.*` of a device by its name."""
    vendor = next((v for v in _VENDORS if re.match(rf"{v}\b", name, re.I)), None)
    return {
        "hw.id": uuid,
        "hw.type": "gpu",
        "hw.name": name,
        "hw.model": name[len(vendor) :].strip() if vendor else name,
        "hw.vendor": vendor,
    }


def device_uuid(analysis: Analysis, device: int) -> str | None:
    """The UUID of a device, where the run recorded it."""
    uuids = analysis.trace.meta.facts.get("device_uuids")
    known = uuids.get(str(device)) if isinstance(uuids, Mapping) else None
    return str(known) if known else None

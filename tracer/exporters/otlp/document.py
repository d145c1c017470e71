"""Spans as an OTLP file in place of a delivery: protobuf, or the JSON that Jaeger can upload."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tracer.errors import DeliveryError
from tracer.exporters.otlp.undelivered import Keeper
from tracer.exporters.otlp.wire import Batch

_KINDS = ("SPAN_KIND_UNSPECIFIED", "SPAN_KIND_INTERNAL", "SPAN_KIND_SERVER", "SPAN_KIND_CLIENT")
_IDS = ("traceId", "spanId", "parentSpanId")


def write_document(made: Iterable[Batch], path: Path) -> int:
    """Write the batches; `.json` becomes OTLP JSON, any other name protobuf. The span count."""
    if path.suffix == ".json":
        return _write_json(made, path)
    keeper = Keeper(path)
    for batch in made:
        keeper.keep(batch)
    keeper.close()
    if keeper.failure:
        raise DeliveryError(keeper.failure)
    return keeper.spans


def _write_json(made: Iterable[Batch], path: Path) -> int:
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.write('{"resourceSpans":[')
            for batch in made:
                separator = "" if count == 0 else ","
                for resource in _resources(batch):
                    file.write(separator + json.dumps(resource, separators=(",", ":")))
                    separator = ","
                count += batch.count
            file.write("]}\n")
    except OSError as error:
        raise DeliveryError(f"{path}: could not be written: {error.strerror}") from error
    return count


def _resources(batch: Batch) -> Iterator[Any]:
    """The `resourceSpans` of a batch; ids in hexadecimal, as OTLP has them, not in base 64."""
    trace: Any = import_module("opentelemetry.proto.trace.v1.trace_pb2")
    formats: Any = import_module("google.protobuf.json_format")
    data = formats.MessageToDict(trace.TracesData.FromString(batch.message()))
    for resource in data["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                _write_ids(span)
        yield resource


def _write_ids(span: dict[str, Any]) -> None:
    for holder in (span, *span.get("links", ())):
        for key in _IDS:
            if key in holder:
                holder[key] = base64.b64decode(holder[key]).hex()
    # Enumerations are numbers in OTLP JSON.
    span["kind"] = _KINDS.index(span["kind"])

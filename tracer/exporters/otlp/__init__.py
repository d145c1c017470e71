"""Export over OTLP: spans and metrics to Jaeger or any other receiver.

The names below load on first use, and OpenTelemetry and gRPC only when an export starts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.exporters.otlp.background import BackgroundExport
    from tracer.exporters.otlp.context import current as current_context
    from tracer.exporters.otlp.context import run_context
    from tracer.exporters.otlp.export import export_otlp
    from tracer.exporters.otlp.live import LiveExport
    from tracer.exporters.otlp.report import DeliveryReport

_HOMES = {
    "BackgroundExport": ("background", "BackgroundExport"),
    "DeliveryReport": ("report", "DeliveryReport"),
    "LiveExport": ("live", "LiveExport"),
    "current_context": ("context", "current"),
    "export_otlp": ("export", "export_otlp"),
    "run_context": ("context", "run_context"),
}

__all__ = [
    "BackgroundExport",
    "DeliveryReport",
    "LiveExport",
    "current_context",
    "export_otlp",
    "run_context",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, inner = _HOMES[name]
    return getattr(import_module(f"{__name__}.{home}"), inner)

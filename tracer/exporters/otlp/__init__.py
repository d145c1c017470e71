"""Export over OTLP: spans and metrics to Jaeger or any other receiver.

Nothing here imports OpenTelemetry or gRPC before an export starts.
"""

from __future__ import annotations

from tracer.exporters.otlp.background import BackgroundExport
from tracer.exporters.otlp.context import current as current_context
from tracer.exporters.otlp.export import export_otlp
from tracer.exporters.otlp.report import DeliveryReport

__all__ = ["BackgroundExport", "DeliveryReport", "current_context", "export_otlp"]

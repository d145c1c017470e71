"""Where to send: arguments, then the standard variables, then defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tracer.errors import UsageError
from tracer.exporters.otlp.context import Context, current, from_argument, parse
from tracer.exporters.otlp.options import Arguments, Target, parse_headers, resolve
from tracer.exporters.otlp.resource import environment_attributes

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def target(environ: dict[str, str] | None = None, **arguments: object) -> Target:
    return resolve(Arguments(**arguments), environ or {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("endpoint", "protocol", "shown"),
    [
        ("http://localhost:4317", "grpc", "http://localhost:4317"),
        ("localhost:4317", "grpc", "http://localhost:4317"),
        ("collector.example:4317", "grpc", "https://collector.example:4317"),
        ("https://collector.example", "grpc", "https://collector.example:4317"),
        ("http://localhost:4318", "http/protobuf", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http/protobuf", "http://localhost:4318/v1/traces"),
        ("http://h:9/in/v1/traces", "http/protobuf", "http://h:9/in/v1/traces"),
        ("http://h:9/otlp", "http/protobuf", "http://h:9/otlp"),
        ("http://[::1]:4318", "http/protobuf", "http://[::1]:4318/v1/traces"),
        ("https://h/v1/traces?token=secret", "http/protobuf", "https://h:443/v1/traces"),
    ],
)
def test_an_endpoint_as_argument(endpoint: str, protocol: str, shown: str) -> None:
    found = target(endpoint=endpoint)
    assert (found.protocol, found.shown) == (protocol, shown)


def test_the_common_variable_is_a_base_and_the_signals_own_is_used_as_it_is() -> None:
    http = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    common = http | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1/base"}
    own = common | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:2/own"}
    bare = http | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:2"}
    assert target(common).path == "/base/v1/traces"
    assert resolve(Arguments(), common, "metrics").path == "/base/v1/metrics"
    assert (target(own).host, target(own).path) == ("t", "/own")
    assert target(bare).path == "/"
    assert target(own, endpoint="http://a:3/x").shown == "http://a:3/x"


def test_defaults_without_anything() -> None:
    assert target().shown == "http://localhost:4317"
    assert target(protocol="http/protobuf").shown == "http://localhost:4318/v1/traces"


def test_metrics_go_beside_traces() -> None:
    named = Arguments(endpoint="http://h:9/in/v1/traces")
    assert resolve(named, {}, "metrics").path == "/in/v1/metrics"


def test_protocol_headers_timeout_and_compression_from_variables() -> None:
    found = target(
        {
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x, X-Tenant = a ",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        }
    )
    assert found.protocol == "grpc"
    assert found.headers == (("authorization", "Bearer x"), ("x-tenant", "a"))
    assert (found.compression, found.timeout_s) == ("gzip", 2.5)


def test_a_timeout_of_less_than_100_is_the_python_sdks_seconds() -> None:
    assert target({"OTEL_EXPORTER_OTLP_TIMEOUT": "10"}).timeout_s == 10.0
    assert target({"OTEL_EXPORTER_OTLP_TIMEOUT": "10000"}).timeout_s == 10.0


def test_insecure_decides_for_an_address_without_a_scheme(tmp_path: Path) -> None:
    said = {"OTEL_EXPORTER_OTLP_INSECURE": "true"}
    assert not target(said, endpoint="far:1").secure
    assert target({}, endpoint="far:1").secure
    assert not target({}, endpoint="far:1", insecure=True).secure
    assert target(said, endpoint="https://far:1").secure
    certificate = tmp_path / "ca.pem"
    certificate.write_text("x")
    assert target({"OTEL_EXPORTER_OTLP_CERTIFICATE": str(certificate)}).certificate == certificate


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"endpoint": "ftp://h:1"}, "ftp://h:1"),
        ({"endpoint": "http://"}, "http://"),
        ({"endpoint": "http://h:99999"}, "port"),
        ({"endpoint": "http://user:secret@h:1"}, "credentials"),
        ({"protocol": "http/json"}, "http/json"),
        ({"compression": "zstd"}, "zstd"),
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"headers": "no-equals"}, "key=value"),
        ({"headers": {"a": "x\r\nEvil: 1"}}, "header"),
        ({"certificate": "/no/such/file"}, "/no/such/file"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        target({}, **arguments)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_headers_of_a_variable_are_percent_decoded() -> None:
    assert parse_headers("a=b%2Cc,,d=e%3D") == (("a", "b,c"), ("d", "e="))


def test_a_malformed_resource_variable_is_discarded_whole() -> None:
    assert environment_attributes({"OTEL_RESOURCE_ATTRIBUTES": "a=b,c=d%20e"}) == {
        "a": "b",
        "c": "d e",
    }
    assert environment_attributes({"OTEL_RESOURCE_ATTRIBUTES": "a=b,broken"}) == {}


def test_a_traceparent_is_read_as_w3c_says() -> None:
    text = f"00-{TRACE}-{SPAN}-01"
    wanted = Context(bytes.fromhex(TRACE), bytes.fromhex(SPAN), 1)
    assert parse(text) == wanted
    assert wanted.traceparent == text
    assert parse(f"cc-{TRACE}-{SPAN}-01-what-comes-later") == wanted
    for wrong in ("", text.upper(), f"ff-{TRACE}-{SPAN}-01", f"{text}-more", "00-0-0-0",
                  f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"):  # fmt: skip
        assert parse(wrong) is None


def test_a_traceparent_comes_from_headers_or_the_environment() -> None:
    text = f"00-{TRACE}-{SPAN}-00"
    found = from_argument({"TraceParent": text, "TRACESTATE": "a=b"})
    assert (found.flags, found.state) == (0, "a=b")
    assert current({"TRACEPARENT": text}) == parse(text)
    assert current({"TRACEPARENT": "garbage"}) is None
    with pytest.raises(UsageError, match="traceparent"):
        from_argument("garbage")
    with pytest.raises(UsageError, match="traceparent"):
        from_argument({"other": text})


def test_the_package_loads_no_opentelemetry_and_no_grpc() -> None:
    program = (
        "import sys, tracer.exporters.otlp, tracer.commands.export;"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'grpc', 'google')];"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

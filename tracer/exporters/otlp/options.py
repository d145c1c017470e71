"""Where to send and how: from arguments, else from the standard `OTEL_…` variables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from tracer.errors import UsageError

Protocol = Literal["grpc", "http/protobuf"]
Signal = Literal["traces", "metrics"]

DEFAULT_TIMEOUT_S = 5.0
_GRPC_PORT, _HTTP_PORT = 4317, 4318
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# The specification counts OTEL_EXPORTER_OTLP_TIMEOUT in milliseconds, the Python SDK in seconds.
# Nobody means a timeout of less than 100 ms, so a smaller number is the SDK's.
_SECONDS_BELOW = 100.0


@dataclass(frozen=True)
class Arguments:
    """What the caller said; None leaves it to the variables and their defaults."""

    endpoint: str | None = None
    protocol: str | None = None
    headers: Mapping[str, str] | str | None = None
    certificate: str | os.PathLike[str] | None = None
    client_key: str | os.PathLike[str] | None = None
    client_certificate: str | os.PathLike[str] | None = None
    insecure: bool | None = None
    compression: str | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class Target:
    """One receiver for one signal."""

    protocol: Protocol
    host: str
    port: int
    path: str  # with its query; "" for gRPC
    secure: bool
    headers: tuple[tuple[str, str], ...]
    compression: Literal["gzip", "none"]
    timeout_s: float
    certificate: Path | None
    client_key: Path | None
    client_certificate: Path | None

    @property
    def shown(self) -> str:
        """The address for messages: no header, no query, as they can hold secrets."""
        scheme = "https" if self.secure else "http"
        return f"{scheme}://{self.netloc}{self.path.partition('?')[0]}"

    @property
    def netloc(self) -> str:
        """Host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether the receiver runs on this machine, so that no proxy lies between."""
        return self.host in _LOOPBACK


@dataclass(frozen=True)
class _Variables:
    """The variables of one signal: its own first, then the common one."""

    environ: Mapping[str, str]
    signal: Signal

    def own(self, name: str) -> str | None:
        return self.environ.get(f"OTEL_EXPORTER_OTLP_{self.signal.upper()}_{name}") or None

    def common(self, name: str) -> str | None:
        return self.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or None

    def get(self, name: str) -> str | None:
        return self.own(name) or self.common(name)


def resolve(
    arguments: Arguments, environ: Mapping[str, str] | None = None, signal: Signal = "traces"
) -> Target:
    """The receiver that arguments and environment name."""
    variables = _Variables(os.environ if environ is None else environ, signal)
    url, path_rule = _endpoint(arguments, variables)
    split = _split(url) if url is not None else None
    protocol = _protocol(arguments.protocol or variables.get("PROTOCOL"), split)
    return Target(
        protocol=protocol,
        host=(split.hostname if split else None) or "localhost",
        port=_port(split, url, protocol),
        path=_path(split, path_rule, signal) if protocol == "http/protobuf" else "",
        secure=_secure(split, arguments, variables),
        headers=_headers(arguments, variables),
        compression=_compression(arguments.compression or variables.get("COMPRESSION")),
        timeout_s=_timeout(arguments.timeout, variables),
        certificate=_file(arguments.certificate, variables, "CERTIFICATE"),
        client_key=_file(arguments.client_key, variables, "CLIENT_KEY"),
        client_certificate=_file(arguments.client_certificate, variables, "CLIENT_CERTIFICATE"),
    )


def _endpoint(arguments: Arguments, variables: _Variables) -> tuple[str | None, str]:
    """The address and which rule its path follows: argument, own, common or none."""
    if arguments.endpoint is not None:
        return arguments.endpoint, "argument"
    if own := variables.own("ENDPOINT"):
        return own, "own"
    if common := variables.common("ENDPOINT"):
        return common, "common"
    return None, "none"


def _split(url: str) -> SplitResult:
    split = urlsplit(url if "://" in url else f"//{url}")
    if split.scheme not in ("", "http", "https") or not split.hostname:
        raise UsageError(
            f"endpoint {url!r}: write http://host:port, https://host:port or host:port"
        )
    if split.username or split.password:
        raise UsageError("endpoint: give credentials as a header, not inside the address")
    return split


def _protocol(wanted: str | None, split: SplitResult | None) -> Protocol:
    if wanted == "grpc" or wanted == "http/protobuf":
        return "grpc" if wanted == "grpc" else "http/protobuf"
    if wanted == "http":
        return "http/protobuf"
    if wanted is not None:
        raise UsageError(f"protocol {wanted!r}: use grpc or http/protobuf")
    if split is not None and (_port_of(split) == _HTTP_PORT or split.path.strip("/")):
        return "http/protobuf"
    return "grpc"


def _port_of(split: SplitResult) -> int | None:
    try:
        return split.port
    except ValueError:
        return None


def _port(split: SplitResult | None, url: str | None, protocol: Protocol) -> int:
    if split is None:
        return _GRPC_PORT if protocol == "grpc" else _HTTP_PORT
    try:
        if split.port is not None:
            return split.port
    except ValueError:
        raise UsageError(f"endpoint {url!r}: the port is no number up to 65535") from None
    if protocol == "grpc":
        return _GRPC_PORT
    return 443 if split.scheme == "https" else 80


def _path(split: SplitResult | None, rule: str, signal: Signal) -> str:
    """The specification: a common variable is a base, a signal's own is used as it is.

    An argument is used as it is too, but one without a path gets the standard one, because no
    receiver listens at `/`; metrics of an argument that names the path of traces go beside it.
    """
    standard = f"/v1/{signal}"
    given = split.path if split is not None else ""
    query = f"?{split.query}" if split is not None and split.query else ""
    if rule == "common" or not given.strip("/"):
        return (given.rstrip("/") + standard if rule != "own" else "/") + query
    if rule == "argument" and given.rstrip("/").endswith("/v1/traces"):
        return given.rstrip("/").removesuffix("/v1/traces") + standard + query
    return given + query


def _secure(split: SplitResult | None, arguments: Arguments, variables: _Variables) -> bool:
    if split is not None and split.scheme:
        return split.scheme == "https"
    insecure = arguments.insecure
    if insecure is None and (said := variables.get("INSECURE")):
        insecure = said.strip().lower() == "true"
    if insecure is not None:
        return not insecure
    return split is not None and split.hostname not in _LOOPBACK


def _headers(arguments: Arguments, variables: _Variables) -> tuple[tuple[str, str], ...]:
    given = arguments.headers
    if isinstance(given, Mapping):
        return tuple(_header(key, value) for key, value in given.items())
    return parse_headers(variables.get("HEADERS") or "" if given is None else given)


def parse_headers(text: str) -> tuple[tuple[str, str], ...]:
    """`key=value,key2=value2` with percent escapes, as the variables have it."""
    parsed: list[tuple[str, str]] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError("headers: write key=value,key2=value2 (one of them has no '=')")
        parsed.append(_header(unquote(key), unquote(value)))
    return tuple(parsed)


def _header(key: str, value: str) -> tuple[str, str]:
    name, content = key.strip().lower(), value.strip()
    good_name = name and all(c.isascii() and (c.isalnum() or c in "!#$%&'*+-.^_`|~") for c in name)
    if not good_name or not content.isprintable() or not content.isascii():
        raise UsageError(f"header {key!r}: name or value has a character that HTTP does not allow")
    return name, content


def _compression(wanted: str | None) -> Literal["gzip", "none"]:
    if wanted in (None, "", "none"):
        return "none"
    if wanted == "gzip":
        return "gzip"
    raise UsageError(f"compression {wanted!r}: use gzip or none")


def _timeout(wanted: float | None, variables: _Variables) -> float:
    if wanted is not None:
        if not math.isfinite(wanted) or wanted <= 0:
            raise UsageError(f"timeout {wanted!r}: give seconds above 0")
        return float(wanted)
    said = variables.get("TIMEOUT")
    if said is None:
        return DEFAULT_TIMEOUT_S
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number <= 0:
        raise UsageError(f"OTEL_EXPORTER_OTLP_TIMEOUT={said!r} is no number of milliseconds")
    return number if number < _SECONDS_BELOW else number / 1000


def _file(
    given: str | os.PathLike[str] | None, variables: _Variables, variable: str
) -> Path | None:
    named = given if given is not None else variables.get(variable)
    if named is None:
        return None
    path = Path(named)
    if not path.is_file():
        raise UsageError(f"{variable.lower().replace('_', ' ')} {str(path)!r} is not a file")
    return path

"""Requests to a server that may be slow, gone, or somebody else: bounded, and never elsewhere."""

from __future__ import annotations

import http.client
import ipaddress
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import SplitResult, urlsplit

from tracer.errors import InputError, UsageError

# TensorRT-LLM's /metrics hands out records once: the other path is asked before it.
METRIC_PATHS = ("/prometheus/metrics", "/metrics")
MOST_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 16


class ServerError(InputError):
    """The server cannot be asked. `status` is that of HTTP, 0 where it did not answer at all."""

    rule = "serving.unreachable"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """What a server said: the body as text, and the type that it claims for it."""

    text: str
    content_type: str = ""


@dataclass(frozen=True)
class Server:
    """Where an engine listens: `base` has no path of its own, `path` is that of the metrics where
    one was given. `headers` go with each request."""

    base: str
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The host without its port."""
        return urlsplit(self.base).hostname or ""


def parse_url(text: str, headers: Mapping[str, str] | None = None) -> Server:
    """The server of `http://host:8000`, with or without `/metrics`; the `/v1` of a client's base
    URL is no part of it."""
    text = text.strip()
    parts = _split(text if "://" in text else f"http://{text}")
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{text}: give the URL of a server, for example http://localhost:8000")
    if parts.username is not None:
        raise UsageError(f"{parts.hostname}: give a key with --header, not in the URL")
    path = parts.path.rstrip("/")
    own = next((own for own in METRIC_PATHS if path.endswith(own)), "")
    prefix = path.removesuffix(own or "/v1")
    return Server(f"{parts.scheme}://{parts.netloc}{prefix}", own, dict(headers or {}))


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        _ = parts.port  # out of range, or no number
    except ValueError:
        return None
    return parts


def ask(
    server: Server, path: str, timeout_s: float, *, body: bytes | None = None, post: bool = False
) -> Answer:
    """The answer of a server, at the latest after `timeout_s`; ServerError says why there is none.
    A redirection to another host is not followed."""
    url = server.base + path
    headers = {"User-Agent": "tracer-watch", **server.headers}
    if body is not None:
        headers["Content-Type"] = "application/json"
    data = (body or b"") if post else None
    try:
        request = urllib.request.Request(url, data, headers, method="POST" if post else "GET")
        with _opener(server).open(request, timeout=timeout_s) as response:
            return _read(response, url, timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            words = _reason(error)
        raise ServerError(f"{url}: HTTP {error.code} {words}".rstrip(), error.code) from error
    except urllib.error.URLError as error:
        raise ServerError(f"{server.base}: {_why(error.reason)}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ServerError(f"{server.base}: {_why(error)}") from error


def _opener(server: Server) -> urllib.request.OpenerDirector:
    """Through the proxy of the environment, if any; this machine needs none to reach itself."""
    handlers: list[urllib.request.BaseHandler] = [_SameHost()]
    if is_loopback(server.host):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def is_loopback(host: str) -> bool:
    """Whether this is the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class _SameHost(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if (old.scheme, old.netloc) != (new.scheme, new.netloc):
            fp.close()
            raise ServerError(
                f"{req.full_url}: it sends to {newurl}, which is not followed: if that is the "
                "engine, give that URL",
                code,
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read(response: http.client.HTTPResponse, url: str, timeout_s: float) -> Answer:
    """The body, while it comes in time: a server that trickles would hold the window up."""
    ends_s = time.monotonic() + timeout_s
    body = bytearray()
    while chunk := response.read1(_CHUNK_BYTES):
        body += chunk
        if len(body) > MOST_BYTES:
            raise ServerError(f"{url}: it answers more than {MOST_BYTES >> 20} MiB: no metrics")
        if time.monotonic() > ends_s:
            raise ServerError(f"{url}: no whole answer within {timeout_s:g} s")
    return Answer(body.decode("utf-8", "replace"), response.headers.get_content_type())


def _reason(error: urllib.error.HTTPError) -> str:
    """The reason of an error, and the beginning of what was said with it."""
    try:
        said = error.read(200).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        said = ""
    said = "" if said.lstrip().startswith("<") else " ".join(said.split())
    return f"{error.reason}{f': {said}' if said else ''}"


def _why(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time (--timeout gives it longer)"
    if isinstance(reason, ConnectionRefusedError):
        return "no server listens there: does the engine run, and is this its port?"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__

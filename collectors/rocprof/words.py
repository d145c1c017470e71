"""What rocprofv3 calls things, and what they are called here."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from tracer.collectors.nsys.names import read_range, split_ends
from tracer.events import NONE

HOST_TO_DEVICE, DEVICE_TO_HOST = "host_to_device", "device_to_host"
DEVICE_TO_DEVICE, HOST_TO_HOST = "device_to_device", "host_to_host"
PEER_TO_PEER, UNKNOWN = "peer_to_peer", "unknown"
COPY_NAMES = {
    HOST_TO_DEVICE: "Memcpy HtoD",
    DEVICE_TO_HOST: "Memcpy DtoH",
    DEVICE_TO_DEVICE: "Memcpy DtoD",
    PEER_TO_PEER: "Memcpy PtoP",
    HOST_TO_HOST: "Memcpy HtoH",
    UNKNOWN: "Memcpy",
}
# Functions that AMD's libraries announce as ranges: none of the program.
_RCCL_CALL = re.compile(r"nccl[A-Z]\w*")
_LIBRARY_CALL = re.compile(
    r"(?:roc|hip)(?:blas|solver|sparse|fft|rand)|miopen[A-Z]|MIOpen", re.ASCII
)
_SUFFIXES = (" [clone .kd]", ".kd")


class Called(NamedTuple):
    """A host call or range: of which kind of event it is, and its name there. `sequence` and
    `sizes`: what PyTorch wrote behind it, of autograd and of the inputs as JSON text."""

    kind: str
    name: str
    sequence: int = NONE
    sizes: str = ""


def words_of(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def copy_direction(word: str) -> str:
    """The direction that `MEMORY_COPY_HOST_TO_DEVICE` names."""
    found = word.lower().removeprefix("memory_copy_")
    return found if found in COPY_NAMES else UNKNOWN


def kernel_name(symbol: str) -> str:
    """The name of a kernel without the marks of its descriptor."""
    for suffix in _SUFFIXES:
        symbol = symbol.removesuffix(suffix)
    return symbol


@lru_cache(maxsize=65536)
def host_call(domain: str, name: str, *, instant: bool = False) -> Called:
    """The event that a row of a domain such as HIP_RUNTIME_API or MARKER_CORE_API stands for. A
    mark of no length is no range."""
    if domain.startswith("HIP"):
        return Called("runtime", name)
    # A row without a message has the name of its function.
    if domain.startswith("MARKER_CORE") and not instant and not name.startswith("roctx"):
        return _range(name)
    if domain.startswith("RCCL"):
        return Called("annotation", f"rccl:{name}")
    return Called("other", name)


def _range(message: str) -> Called:
    if _RCCL_CALL.fullmatch(message):
        return Called("annotation", f"rccl:{message}")
    if _LIBRARY_CALL.match(message):
        return Called("other", message)
    ends = split_ends(message)
    found = read_range(ends.name)
    # Only operators have a number of autograd; a marker may enclose nothing.
    kind = "operator" if ends.sequence != NONE else found.kind or "other"
    return Called(kind, found.name, ends.sequence, ends.sizes)


def is_hsa(domain: str) -> bool:
    """Whether a domain is one of the HSA runtime, below HIP."""
    return domain.startswith("HSA")

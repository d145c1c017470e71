"""Ids that are the same whenever the same run is exported, and differ between runs and ranks."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from tracer.events import Trace

Ids = NDArray[np.uint64]


def fingerprint(trace: Trace) -> bytes:
    """What identifies a recording: its times and names. Sixteen bytes."""
    digest = blake2b(digest_size=16, person=b"tracer.run")
    digest.update(repr((trace.meta.rank, len(trace.events), len(trace.names))).encode())
    digest.update(np.ascontiguousarray(trace.start_ns).data)
    digest.update(np.ascontiguousarray(trace.end_ns[:]).data)
    return digest.digest()


def trace_id_of(parts: list[bytes]) -> bytes:
    """A trace id for recordings that belong together, whatever their order."""
    return _not_zero(blake2b(b"".join(sorted(parts)), digest_size=16, person=b"tracer.trace"))


def job_trace_id(job: str) -> bytes:
    """A trace id that every rank of one job finds by itself."""
    return _not_zero(blake2b(job.encode(), digest_size=16, person=b"tracer.job"))


def _not_zero(digest: blake2b) -> bytes:
    found = digest.digest()
    return found if any(found) else b"\x01" * len(found)


def span_ids(trace_id: bytes, scope: str, numbers: NDArray[np.int64]) -> Ids:
    """Ids of the spans `numbers` of a kind; within one scope no two are equal.

    The mix is splitmix64: a bijection, so equal only for equal numbers; 0 is not allowed by the
    protocol and becomes another constant.
    """
    seed = blake2b(scope.encode("utf-8", "backslashreplace"), key=trace_id, digest_size=8).digest()
    with np.errstate(over="ignore"):
        mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed += np.uint64(int.from_bytes(seed, "little"))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    mixed[mixed == 0] = np.uint64(0x5BD1E995)
    return mixed


def span_id(trace_id: bytes, scope: str, number: int = 0) -> int:
    """One id of a kind."""
    return int(span_ids(trace_id, scope, np.array([number], dtype=np.int64))[0])

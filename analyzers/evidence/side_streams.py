"""Work on streams beside the one that runs the layers: shared experts, norms of queries and keys.

An engine starts it from within a layer, once a layer, so it belongs to the block that the main
stream is in. What runs beside the model for its own sake, such as sampling, does not keep that
count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, BUCKETS
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs

CONFIDENCE = 0.65
_PARTS = {
    "attention": {
        "GEMM": "projection",
        "SPLITK": "projection",
        "NORM": "norm",
        "QUANT": "dequantize",
    },
    "ffn": {
        "GEMM": "projection",
        "SPLITK": "projection",
        "GEMM_AUX": "experts",
        "MOE": "experts",
        "ROUTER": "router",
        "GLU": "activation",
        "ACT": "activation",
        "MUL": "activation",
        "QUANT": "dequantize",
    },
}
_LEADING = ("GEMM", "MOE", "NORM")  # one of them comes once a layer, or it is no part of layers


def joined_streams(work: Work, rows: Longs, stream: Longs) -> Longs:
    """The stream of each row; what one operator of PyTorch spreads over several, as a convolution
    in groups does, is on that of the work that its thread launched before it."""
    told = rows[work.site[rows] != NONE]
    told = told[np.argsort(work.site[told], kind="stable")]
    operator, first, code = np.unique(work.operator[told], return_index=True, return_inverse=True)
    apart = np.bincount(code, weights=stream[told] != stream[told[first]][code]) > 0
    native = work.trace.names_matching(lambda name: name.startswith("aten::"))
    apart &= (operator != NONE) & native[work.trace.name_codes[operator]]
    if not apart.any():
        return stream
    device = work.trace.events["device"].to_numpy()[work.event[told]]
    thread = work.trace.events["thread"].to_numpy()[work.site[told]]
    order = np.lexsort((np.arange(told.size), device, thread))
    told, device, thread = told[order], device[order], thread[order]
    place = np.where(apart[code][order], NONE, np.arange(told.size))
    before = np.maximum.accumulate(place)
    near = (before != NONE) & (device[before] == device) & (thread[before] == thread)
    joined = stream.copy()
    joined[told[near]] = stream[told[before[near]]]
    return joined


def fill_side_streams(
    work: Work, out: Attribution, main: Longs, side: Sequence[Longs], layers: int
) -> None:
    """Give the rows of `side` sequences the block that `main` was in when they began; all of one
    device. `layers`: how many the main sequence ran through."""
    block = _blocks_ahead(out.bucket[main])
    starts = work.trace.start_ns[work.event]
    tokens = np.array([name.token for name in work.names], dtype=object)
    for rows in side:
        token = tokens[work.name_code[rows]]
        if not any((token == leading).sum() >= layers / 2 for leading in _LEADING):
            continue
        at = np.searchsorted(starts[main], starts[rows], side="right") - 1
        inside = (at >= 0) & (starts[rows] <= starts[main[-1]])
        _fill(out, rows[inside], token[inside], block[at[inside]])


def _blocks_ahead(bucket: NDArray[np.int16]) -> NDArray[np.int64]:
    """For each row the bucket of the block it is in or, between blocks, of the one to come."""
    blocks = np.isin(bucket, [code for code, (group, _) in enumerate(BUCKETS) if group in _PARTS])
    place = np.where(blocks, np.arange(bucket.size), bucket.size)
    ahead = np.minimum.accumulate(place[::-1])[::-1]
    found: NDArray[np.int64] = np.append(bucket, NONE)[ahead].astype(np.int64)
    return found


def _fill(out: Attribution, rows: Longs, token: NDArray[np.object_], block: Longs) -> None:
    buckets = [
        BUCKET_CODE.get((BUCKETS[b][0], _PARTS[BUCKETS[b][0]].get(t, "")), NONE)
        if b != NONE
        else NONE
        for t, b in zip(token.tolist(), block.tolist(), strict=True)
    ]
    out.fill(rows, np.array(buckets, dtype=np.int16), "position", CONFIDENCE)

"""What a step computed, from the operators inside it: phase, batch, new tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.steps.call_phases import learning_ns
from tracer.events import Trace

_ATTENTION = re.compile(
    r"aten::(scaled_dot_product_attention|_scaled_dot_product_\w+)$|flash_attn(::|_\w*fwd)"
)
# The weights of attention that is written out: [batch, heads, queries, keys].
_WEIGHTS = re.compile(r"aten::_softmax$")
_EMBEDDING = re.compile(r"aten::embedding$")


@dataclass(frozen=True)
class ContentFacts:
    """Phase "" and -1 where the recording does not tell. square: attention that is written out has
    as many keys as queries, several."""

    phase: str = ""
    batch: int = NONE
    tokens: int = NONE
    square: bool = False


def content_facts(trace: Trace, ranges: Sequence[tuple[int, int]]) -> list[ContentFacts]:
    """For each range of host time what was computed in it."""
    learning = learning_ns(trace)
    shapes = _shaped(trace)
    out = []
    for start, end in ranges:
        if _any_within(learning, start, end):
            out.append(ContentFacts("training", *_learned_from(shapes, learning, start, end)))
        else:
            out.append(_inference_facts(shapes, start, end))
    decodes = any(facts.phase == "decode" for facts in out)
    return [_opened(facts) if decodes else facts for facts in out]


def _opened(facts: ContentFacts) -> ContentFacts:
    """Of steps among which some decode, one that takes in several tokens at once and whose
    attention is written out, so that no argument says whether it is causal."""
    unknown = facts.phase == "" and facts.square
    return replace(facts, phase="prefill") if unknown else facts


def _any_within(times: Longs, start: int, end: int) -> bool:
    first = int(np.searchsorted(times, start))
    return first < times.size and int(times[first]) < end


@dataclass(frozen=True)
class _Shaped:
    """Operators with recorded shapes that tell of tokens: attention, its weights where it is
    written out, and embedding."""

    start_ns: Longs
    attention: NDArray[np.bool_]
    weights: NDArray[np.bool_]
    embedding: NDArray[np.bool_]
    shapes: list[str]
    concrete: list[str]


def _shaped(trace: Trace) -> _Shaped:
    table = trace.table("shapes")
    events = table["event"].to_numpy()
    codes = trace.name_codes[events]
    attention = trace.names_matching(lambda n: _ATTENTION.match(n) is not None)[codes]
    weights = trace.names_matching(lambda n: _WEIGHTS.match(n) is not None)[codes]
    embedding = trace.names_matching(lambda n: _EMBEDDING.match(n) is not None)[codes]
    keep = attention | weights | embedding
    kept = table[keep]
    return _Shaped(
        trace.start_ns[events[keep]],
        attention[keep],
        weights[keep],
        embedding[keep],
        [str(text) for text in kept["input_shapes"]],
        [str(text) for text in kept["concrete_inputs"]],
    )


def _inference_facts(shaped: _Shaped, start: int, end: int) -> ContentFacts:
    rows = range(*np.searchsorted(shaped.start_ns, [start, end]).tolist())
    batch, tokens = _embedded(shaped, start, end)
    for row in rows:
        if shaped.weights[row]:
            told = _by_weights(_dims(shaped.shapes[row]), batch, tokens)
            if told is not None:
                return told
        if not shaped.attention[row]:
            continue
        dims = _dims(shaped.shapes[row])
        if len(dims) < 2 or len(dims[0]) != 4 or len(dims[1]) != 4:
            continue
        queries, keys = dims[0][-2], dims[1][-2]
        own_batch = batch if batch >= 0 else int(dims[0][0])
        own_tokens = tokens if tokens >= 0 else int(dims[0][0] * queries)
        if queries == 1 and keys > 1:
            return ContentFacts("decode", own_batch, own_tokens)
        if keys > queries or _is_causal(shaped.concrete[row]):
            return ContentFacts("prefill", own_batch, own_tokens)
        return ContentFacts("forward", own_batch, own_tokens)
    return ContentFacts("", batch, tokens)


def _by_weights(dims: list[list[int]], batch: int, tokens: int) -> ContentFacts | None:
    """What the weights of attention tell; None for a softmax of another kind."""
    if not dims or len(dims[0]) != 4:
        return None
    own_batch, _, queries, keys = dims[0]
    batch = batch if batch >= 0 else own_batch
    tokens = tokens if tokens >= 0 else own_batch * queries
    if queries == keys:
        return ContentFacts("", batch, tokens, square=queries > 1)
    phase = "decode" if queries == 1 else "prefill" if keys > queries else ""
    return ContentFacts(phase, batch, tokens)


def _learned_from(shaped: _Shaped, learning: Longs, start: int, end: int) -> tuple[int, int]:
    """Batch and tokens of all passes that a step learns from: of the embedding that the first pass
    begins with, once in each pass, which begins after learning from the one before."""
    first, last = np.searchsorted(shaped.start_ns, [start, end]).tolist()
    table, passed = None, -1
    batch, tokens = 0, 0
    for row in range(first, last):
        dims = _dims(shaped.shapes[row]) if shaped.embedding[row] else []
        if len(dims) < 2 or len(dims[1]) != 2 or table not in (None, dims[0]):
            continue
        after = int(np.searchsorted(learning, shaped.start_ns[row]))
        if table is None or after > passed:
            batch, tokens = batch + dims[1][0], tokens + dims[1][0] * dims[1][1]
        table, passed = dims[0], after
    return (batch, tokens) if table is not None else (NONE, NONE)


def _embedded(shaped: _Shaped, start: int, end: int) -> tuple[int, int]:
    """Batch and tokens of the first embedding of [batch, length] or [tokens] indices."""
    first, last = np.searchsorted(shaped.start_ns, [start, end]).tolist()
    for row in range(first, last):
        dims = _dims(shaped.shapes[row]) if shaped.embedding[row] else []
        if len(dims) >= 2 and len(dims[1]) == 2:
            return int(dims[1][0]), int(dims[1][0] * dims[1][1])
    return NONE, NONE


def _dims(text: str) -> list[list[int]]:
    try:
        dims = json.loads(text)
    except ValueError:
        return []
    if not isinstance(dims, list):
        return []
    return [d if isinstance(d, list) and all(isinstance(n, int) for n in d) else [] for d in dims]


def _is_causal(text: str) -> bool:
    """Argument 5 of scaled_dot_product_attention(query, key, value, attn_mask, p, is_causal)."""
    try:
        values = json.loads(text)
    except ValueError:
        return False
    return isinstance(values, list) and len(values) > 5 and str(values[5]).lower() == "true"

"""What a generation does between its calls of a model is sampling; a loop of one's own is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.live_models import decoder, prompt
from tracer import trace
from tracer.analysis import BUCKET_CODE, BUCKETS, Analysis

pytestmark = pytest.mark.usefixtures("one_thread", "quietly")

SAMPLING = BUCKET_CODE["other", "sampling"]


def buckets_of(analysis: Analysis, operator: str) -> list[tuple[str, str]]:
    """Where the work of an operator went, in order of time."""
    trace_ = analysis.trace
    work = analysis.work.iloc[np.argsort(trace_.start_ns[analysis.work["event"].to_numpy()])]
    named = trace_.named(lambda name: name == operator, "operator")
    return [BUCKETS[code] for code in work["bucket"][named[work["event"].to_numpy()]]]


def test_the_choice_of_tokens_is_sampling() -> None:
    model = decoder("llama")
    with torch.no_grad(), trace(model) as t:
        model.generate(prompt(), max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert buckets_of(t.analysis, "aten::argmax") == [("other", "sampling")] * 5
    calls = t.trace.table("root_calls")
    work = t.analysis.work
    start = t.trace.start_ns[work["event"].to_numpy()]
    first, last = calls["start_ns"].min(), calls["start_ns"].max()
    inside = np.zeros(len(work), dtype=bool)
    for begun, ended in zip(calls["start_ns"], calls["end_ns"], strict=True):
        inside |= (start >= begun) & (start < ended)
    between = ~inside & (start > first) & (start < last)
    assert between.sum() > 5
    assert BUCKET_CODE["other", "unattributed"] not in set(work["bucket"][between])
    assert SAMPLING not in set(work["bucket"][inside])


def test_a_loop_of_ones_own_may_do_anything_between() -> None:
    model, tokens = decoder("llama"), prompt()
    with torch.no_grad(), trace(model) as t:
        for _ in range(3):
            chosen = model(tokens).logits[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, chosen], 1)
    work = t.analysis.work
    assert len(work)
    assert not ((work["bucket"] == SAMPLING) & (work["how"] == "operator")).any()

"""Rule loop.draft: speculative decoding that takes longer than decoding without it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch

from tests.live_models import decoder, prompt, quiet
from tracer import trace
from tracer.analysis import Analysis
from tracer.exporters.sentence import verdict
from tracer.exporters.what_if import what_if
from tracer.findings import Finding

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
RULE = "loop.draft"


def slow(model: Any, seconds: float) -> Any:
    """The model, each of its calls longer by that: its host takes it, however many tokens."""
    model.register_forward_pre_hook(lambda *_: time.sleep(seconds))
    return model


def another(tokens: int) -> Any:
    """A model that says something else, and proposes so many tokens at a time."""
    model = decoder("llama")
    with torch.no_grad():
        model.lm_head.weight.neg_()
    return proposing(model, tokens)


def proposing(model: Any, tokens: int) -> Any:
    config = model.generation_config
    config.num_assistant_tokens, config.assistant_confidence_threshold = tokens, 0.0
    config.num_assistant_tokens_schedule = "constant"
    return model


def generate(model: Any, **options: Any) -> Analysis:
    ids = prompt(1, 40)
    with quiet(), trace() as t, torch.no_grad():
        model.generate(ids, max_new_tokens=24, do_sample=False, **options)  # called here
    return t.analysis


CALLED = generate.__code__.co_firstlineno + 3


def found(analysis: Analysis) -> Finding | None:
    return next((finding for finding in analysis.findings if finding.rule == RULE), None)


def status(analysis: Analysis) -> str:
    return next(check.status for check in analysis.checks if check.rule == RULE)


def test_a_draft_as_dear_as_its_target_that_says_something_else() -> None:
    model, draft = slow(decoder("llama"), 0.02), slow(another(3), 0.02)
    analysis = generate(model, assistant_model=draft)
    finding = found(analysis)
    assert finding is not None and finding.severity == "critical"
    assert (finding.where.file, finding.where.line) == (__file__, CALLED)
    detail = finding.detail
    assert detail["causes"] == ["rejected", "dear"]
    assert detail["accepted_tokens"] == 0 and detail["proposed_tokens"] >= 3 * (finding.count - 1)
    assert "tokens proposed for a call of LlamaForCausalLM 0.0 stay" in finding.title
    told = r"the calls of the draft, LlamaForCausalLM, that propose (\d+\.\d tokens) take [\d.]+ "
    proposed = re.search(told, finding.title)
    assert proposed is not None and f"of {proposed[1]} proposed" in finding.title
    assert finding.advice.startswith("Leave out assistant_model. 0 of ")
    assert "speculative decoding takes" in verdict(analysis).lower()
    assert RULE in {row["rule"] for row in what_if(analysis)}
    # What is predicted is what the same program takes without the draft.
    alone = generate(model)
    assert status(alone) == "clear"
    (decode,) = (phase for phase in alone.phases if phase.name == "decode")
    assert detail["token_alone_ns"] == pytest.approx(
        1e9 / (decode.tokens_per_second or 0), rel=0.25
    )


def test_a_cheap_draft_that_is_believed_is_clear() -> None:
    model, draft = slow(decoder("llama"), 0.05), proposing(decoder("llama"), 3)
    analysis = generate(model, assistant_model=draft)
    assert found(analysis) is None and status(analysis) == "clear"
    assert {phase.name for phase in analysis.phases} >= {"draft", "decode"}


def test_a_dear_draft_whose_tokens_stay() -> None:
    model, draft = slow(decoder("llama"), 0.02), proposing(slow(decoder("llama"), 0.04), 2)
    finding = found(generate(model, assistant_model=draft))
    assert finding is not None and finding.detail["causes"] == ["dear"]
    assert "a draft pays where it is several times cheaper" in finding.advice


def test_without_lengths_of_the_cache_nothing_is_said() -> None:
    model, draft = slow(decoder("llama"), 0.02), slow(another(3), 0.02)
    ids = prompt(1, 40)
    with quiet(), trace(detail="light") as t, torch.no_grad():
        model.generate(ids, max_new_tokens=16, do_sample=False, assistant_model=draft)
    assert status(t.analysis) == "not_checked" and found(t.analysis) is None

"""The phase of calls of a model: prompts in chunks, tokens of a draft that are checked."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

from tests.live_models import decoder, prompt, quiet
from tracer import trace
from tracer.analyzers.steps.call_phases import call_phases
from tracer.events import SIDE_TABLES, make_table

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def table(*calls: tuple[str, int, int], generation: int = 0) -> pd.DataFrame:
    """Calls of one thread: root, new tokens, and whether a cache was filled."""
    roots, tokens, cached = zip(*calls, strict=True)
    columns = {"root": roots, "type": roots, "tokens": tokens, "cached": cached}
    same = {"generation": [generation] * len(calls), "graded": [0] * len(calls)}
    return make_table(SIDE_TABLES["root_calls"], {**columns, **same})


def letters(*calls: tuple[str, int, int], generation: int = 0) -> str:
    return "".join(p.name[0] for p in call_phases(table(*calls, generation=generation)))


def one(*tokens: int) -> list[tuple[str, int, int]]:
    """Calls of one model, the first without a cache."""
    return [("m", count, int(i > 0)) for i, count in enumerate(tokens)]


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ((40, 1, 1, 1), "pddd"),
        ((16, 16, 8, 1, 1), "pppdd"),  # a prompt in chunks
        ((16, 8, 1, 1), "ppdd"),
        ((16, 16, 16, 3, 1, 4), "ppppdd"),  # in chunks, then drafts
        ((40, 5, 1, 2, 3, 5), "pddddd"),
        ((40, 5, 5, 5), "pddd"),
    ],
)
def test_drafts_of_a_generation_are_checked_in_decode_steps(
    tokens: tuple[int, ...], wanted: str
) -> None:
    assert letters(*one(*tokens)) == wanted


def test_outside_a_generation_a_prompt_may_follow_decoding() -> None:
    assert letters(*one(40, 1, 1, 30, 1), generation=-1) == "pddpd"


def test_a_draft_model_proposes_what_another_checks() -> None:
    first = [("draft", 40, 0), ("draft", 1, 1), ("draft", 1, 1), ("m", 43, 0)]
    second = [("draft", 2, 1), ("draft", 1, 1), ("draft", 1, 1), ("m", 4, 1)]
    assert letters(*first, *second, generation=-1) == "pddpdddd"


def test_parts_of_a_model_called_one_by_one_propose_nothing() -> None:
    turn = [("embedding", 30, 1), ("layers", 30, 1), ("head", 30, 1)]
    assert letters(*turn, *turn, generation=-1) == "pppppp"


def report_of(**options: Any) -> Any:
    """The report of a generation, traced."""
    model = decoder("llama")
    with quiet(), trace(detail="light") as t, torch.no_grad():
        model.generate(prompt(1, 40), max_new_tokens=10, do_sample=False, **options)
    return t.report.json()


def test_assisted_generation_decodes_after_the_prompts_of_both_models() -> None:
    assistant = decoder("llama")
    report = report_of(assistant_model=assistant)
    phases = [step["phase"] for step in report["steps"]]
    assert phases.count("prefill") == 2 and phases[0] == "prefill"
    assert phases.count("decode") == len(phases) - 2
    assert {step["name"] for step in report["steps"]} == {"LlamaForCausalLM", "LlamaForCausalLM_2"}
    assert max(step["tokens"] for step in report["steps"] if step["phase"] == "decode") > 1
    assert report["phases"]["decode"]["tokens_per_second"] is None
    assert report["phases"]["prefill"]["tokens_per_second"] > 0
    assert "trace.drafted_tokens" in {note["rule"] for note in report["integrity"]["notes"]}


def test_the_draft_is_a_model_of_its_own() -> None:
    assistant, model = decoder("llama"), decoder("llama")
    with quiet(), trace() as t, torch.no_grad():
        model.generate(prompt(1, 40), max_new_tokens=10, assistant_model=assistant)
    modules = t.analysis.modules
    tops = modules[modules["parent"] < 0]
    assert set(tops["path"]) == {"", "LlamaForCausalLM_2"}
    assert int(tops["calls"].sum()) == len(t.analysis.steps)


def test_a_prompt_in_chunks_is_prefill() -> None:
    report = report_of(prefill_chunk_size=16)
    assert [step["phase"] for step in report["steps"]].count("prefill") == 3
    assert report["phases"]["decode"]["tokens_per_second"] > 0

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


LETTERS = {"prefill": "p", "decode": "d", "draft prefill": "P", "draft": "D"}


def letters(*calls: tuple[str, int, int], generation: int = 0) -> str:
    phases = call_phases(table(*calls, generation=generation))
    return "".join(LETTERS[phase.name] for phase in phases)


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


def test_a_state_that_does_not_tell_whether_it_is_filled() -> None:
    """The state of a recurrence has the same shape before and after."""
    calls = [("m", 40, 0), ("m", 1, -1), ("m", 1, 1)]
    assert letters(*calls) == "pdd"
    assert letters(("m", 1, 0), ("m", 1, -1)) == "pd"


def test_outside_a_generation_a_prompt_may_follow_decoding() -> None:
    assert letters(*one(40, 1, 1, 30, 1), generation=-1) == "pddpd"


def test_a_draft_model_proposes_what_another_checks() -> None:
    first = [("draft", 40, 0), ("draft", 1, 1), ("draft", 1, 1), ("m", 43, 0)]
    second = [("draft", 2, 1), ("draft", 1, 1), ("draft", 1, 1), ("m", 4, 1)]
    assert letters(*first, *second, generation=-1) == "PDDpDDDd"


def test_the_draft_is_told_where_it_proposes_one_token_at_a_time() -> None:
    turns = [("draft", 2, 1), ("m", 2, 1)] * 3
    assert letters(("draft", 40, 0), ("m", 41, 0), *turns) == "PpDdDdDd"


def test_models_that_talk_to_each_other_draft_nothing() -> None:
    def answer(name: str) -> list[tuple[str, int, int]]:
        return [(name, 4, 1), *[(name, 1, 1)] * 3]

    talk = [("a", 40, 0), *[("a", 1, 1)] * 3, ("b", 44, 0), *[("b", 1, 1)] * 3]
    told = letters(*talk, *answer("a"), *answer("b"), *answer("a"), generation=-1)
    assert set(told) == {"p", "d"}


def kept(*past: int, tokens: int = 5, generation: int = 0) -> list[int]:
    """Of calls of one model that take so many tokens each, behind so many in the cache."""
    calls = [("m", tokens if i else 40, int(i > 0)) for i in range(len(past))]
    phases = call_phases(table(*calls, generation=generation).assign(past=list(past)))
    return [phase.kept for phase in phases]


def test_what_is_left_of_a_draft_is_what_the_cache_grew_by() -> None:
    assert kept(0, 7, 9, 14, 15, tokens=7) == [-1, 2, 5, 1, -1]
    assert kept(0, 7, -1, 14, tokens=7) == [-1] * 4  # not recorded
    # A model that drafts for itself has a second cache, and is called twice at a place.
    assert kept(0, 0, 7, 7, 9, 9, tokens=7) == [-1] * 6


def test_parts_of_a_model_called_one_by_one_propose_nothing() -> None:
    turn = [("embedding", 30, 1), ("layers", 30, 1), ("head", 30, 1)]
    assert letters(*turn, *turn, generation=-1) == "pppppp"


def report_of(**options: Any) -> Any:
    """The report of a generation, traced."""
    model = decoder("llama")
    with quiet(), trace(detail="light") as t, torch.no_grad():
        model.generate(prompt(1, 40), max_new_tokens=10, do_sample=False, **options)
    return t.report.json()


def test_draft_and_target_of_an_assisted_generation_have_phases_of_their_own() -> None:
    assistant = decoder("llama")
    report = report_of(assistant_model=assistant)
    steps = report["steps"]
    names = {phase: {s["name"] for s in steps if s["phase"] == phase} for phase in report["phases"]}
    draft, model = "LlamaForCausalLM", "LlamaForCausalLM_2"
    assert names == {
        "draft prefill": {draft},
        "draft": {draft},
        "prefill": {model},
        "decode": {model},
    }
    assert [step["phase"] for step in steps].count("prefill") == 1
    assert max(step["tokens"] for step in steps if step["phase"] == "decode") > 1
    assert report["phases"]["draft"]["tokens_per_second"] is None


def test_tokens_a_second_are_those_that_stay() -> None:
    """All tokens that the same model proposes stay: each check goes on by all that it takes."""
    assistant = decoder("llama")
    report = report_of(assistant_model=assistant)
    checks = [step for step in report["steps"] if step["phase"] == "decode"]
    assert [step["kept_tokens"] for step in checks] == [s["tokens"] for s in checks[:-1]] + [None]
    starts = [step["start_ns"] for step in checks]
    kept = sum(step["kept_tokens"] for step in checks[:-1])
    speed = report["phases"]["decode"]["tokens_per_second"]
    assert speed == pytest.approx(kept * 1e9 / (starts[-1] - starts[0]))
    (note,) = (n for n in report["integrity"]["notes"] if n["rule"] == "trace.drafted_tokens")
    assert note["kept_tokens"] == note["tokens"] == kept


@pytest.mark.parametrize("tokens", [3, 6])
def test_tokens_that_are_looked_up_are_counted_as_they_stay(tokens: int) -> None:
    """The sum of what stays is what was generated between the first check and the last."""
    with quiet(), trace(detail="light") as t, torch.no_grad():
        decoder("llama").generate(
            prompt(1, 40), max_new_tokens=24, do_sample=False, prompt_lookup_num_tokens=tokens
        )
    calls, steps = t.trace.table("root_calls"), t.analysis.steps
    decodes = steps[steps["phase"].astype(str) == "decode"]
    kept = [k if k > 0 else n for k, n in zip(decodes["kept"], decodes["tokens"], strict=True)]
    first, last = (int(calls["past"].iloc[at]) for at in (1, -1))
    assert len(decodes) == len(calls) - 1 and sum(kept[:-1]) == last - first


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

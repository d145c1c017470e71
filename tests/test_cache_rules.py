"""Rules cache.absent and cache.copied: generation without a KV cache, and with one that is copied
whole for each token."""

from __future__ import annotations

import time
from typing import Any

import pandas as pd
import pytest
import torch
import transformers
from torch import nn

from tests.live_models import OwnModel, encoder, prompt, quiet
from tests.make_traces import TraceMaker
from tests.recordings import analysis_of, kineto_files
from tracer import trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.analyzers.diff.compare import compare
from tracer.analyzers.steps.growing_calls import growing_runs
from tracer.events import SIDE_TABLES, make_table
from tracer.exporters.sentence import verdict
from tracer.findings import Finding, Where

pytestmark = pytest.mark.usefixtures("one_thread")

ABSENT, COPIED = "cache.absent", "cache.copied"


def found(analysis: Analysis, rule: str) -> Finding | None:
    return next((finding for finding in analysis.findings if finding.rule == rule), None)


def status(analysis: Analysis, rule: str) -> str:
    return next(check.status for check in analysis.checks if check.rule == rule)


@pytest.fixture(scope="module")
def llama() -> Any:
    """Large enough that its tokens, and not its operators, take the time."""
    shape = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 500}
    with quiet():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **heads)).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


# --- no cache


def without_cache(model: Any, ids: torch.Tensor, tokens: int, **given: Any) -> None:
    with torch.inference_mode():
        for _ in range(tokens):
            logits = model(ids, **given).logits[:, -1:]  # called here
            ids = torch.cat([ids, logits.argmax(-1)], dim=1)


CALLED = without_cache.__code__.co_firstlineno + 3


@pytest.mark.parametrize("returned", [False, True], ids=["none", "dropped"])
def test_a_loop_without_a_cache_is_named_with_its_line(llama: Any, returned: bool) -> None:
    with trace() as t:
        without_cache(llama, prompt(2, 128), 8, use_cache=returned)
    finding = found(t.analysis, ABSENT)
    assert finding is not None and finding.severity == "critical"
    assert finding.where == Where(__file__, CALLED, "without_cache")
    assert (finding.count, finding.steps) == (7, tuple(range(1, 8)))
    assert finding.title == (
        "generation without a KV cache: 7 calls of LlamaForCausalLM compute the whole sequence "
        "again for each token, 129 to 135 tokens at a time"
    )
    assert finding.detail["tokens_again"] == 2 * sum(range(128, 135))
    assert 0 < (finding.gain_ns or 0) < finding.detail["calls_ns"] <= t.analysis.window.wall_ns
    said = "Pass the cache on" if returned else "Turn the cache on"
    assert finding.advice.startswith(said) and said in verdict(t.analysis)
    assert "Generation without a KV cache" in verdict(t.analysis)
    assert found(t.analysis, COPIED) is None
    steps = t.analysis.steps
    assert list(steps["phase"].astype(str)) == ["prefill", *["decode"] * 7]
    assert list(steps["tokens"]) == [2 * 128, *[2] * 7]


def test_generate_without_a_cache(llama: Any) -> None:
    with trace() as t:
        llama.generate(prompt(1, 96), max_new_tokens=8, do_sample=False, use_cache=False)
    finding = found(t.analysis, ABSENT)
    assert finding is not None and finding.advice.startswith("Turn the cache on")
    assert finding.count == 7 and finding.detail["sequences"] == 1
    assert finding.where.file == __file__
    assert finding.where.function == "test_generate_without_a_cache"


def test_a_token_without_a_cache_is_compared_with_one_that_has_it(llama: Any) -> None:
    recorded = []
    for cached in (False, True):
        with trace(detail="light") as t:
            llama.generate(prompt(1, 96), max_new_tokens=8, do_sample=False, use_cache=cached)
        recorded.append(t.analysis)
    phases = compare(*recorded).phases
    assert {change.phase: change.before.steps for change in phases} == {"prefill": 1, "decode": 7}


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_generate_with_a_cache_is_clear(llama: Any, kind: str) -> None:
    ids = prompt(1, 96)
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": kind}
    with trace() as t:
        llama.generate(ids, disable_compile=True, **options)
    assert status(t.analysis, ABSENT) == "clear"
    assert found(t.analysis, COPIED) is None


def test_a_model_of_ones_own_is_told_to_keep_keys_and_values() -> None:
    model, ids = OwnModel(64).eval(), prompt(2, 64)
    with trace() as t, torch.inference_mode():
        for _ in range(6):
            ids = torch.cat([ids, model(ids).argmax(-1)], dim=1)
    finding = found(t.analysis, ABSENT)
    assert finding is not None and "Keep the keys and values of each layer" in finding.advice


class SlowHost(OwnModel):
    """What the host does takes far longer than the operators, however busy the machine is."""

    def forward(self, ids: torch.Tensor, cache: list[torch.Tensor] | None = None) -> torch.Tensor:
        time.sleep(0.05)
        return super().forward(ids, cache)


def test_what_costs_little_is_told_and_not_warned_of() -> None:
    model, ids = SlowHost(64).eval(), prompt(1, 4)
    with trace() as t, torch.inference_mode():
        for _ in range(6):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
    finding = found(t.analysis, ABSENT)
    assert finding is not None and finding.severity == "info"
    assert finding.advice.startswith("It costs little here")


def test_light_recordings_say_what_is_missing(llama: Any) -> None:
    with trace(detail="light") as t:
        without_cache(llama, prompt(1, 64), 6, use_cache=False)
    finding = found(t.analysis, ABSENT)
    assert finding is not None and (finding.severity, finding.cost_ns) == ("info", None)
    assert "was not recorded" in finding.advice
    assert status(t.analysis, COPIED) == "not_checked"


def test_encoders_of_growing_batches_are_clear() -> None:
    model = encoder()
    with trace() as t, torch.inference_mode():
        for batch in range(1, 8):
            model(prompt(batch, 16))
    assert status(t.analysis, ABSENT) == "clear"


def test_training_on_growing_lengths_is_clear(llama: Any) -> None:
    with trace() as t:
        for tokens in range(16, 23):
            torch.autograd.backward(llama(prompt(1, tokens)).logits.mean())
    llama.zero_grad()
    assert status(t.analysis, ABSENT) == "clear"


def calls(*tokens: int, **columns: Any) -> pd.DataFrame:
    """A table of calls of one model with so many tokens."""
    many = len(tokens)
    values = {"batch": 1, "cached": 0, "graded": 0, "generation": -1, "callers": "a", **columns}
    lists = {k: v if isinstance(v, list) else [v] * many for k, v in values.items()}
    fixed = {"root": [""] * many, "type": ["M"] * many, "thread": [1] * many, "part": [""] * many}
    return make_table(SIDE_TABLES["root_calls"], {**fixed, **lists, "tokens": list(tokens)})


def lengths(table: pd.DataFrame) -> list[tuple[int, int]]:
    return [(len(run.rows), run.added) for run in growing_runs(table)]


def test_which_calls_compute_again_what_the_last_one_did() -> None:
    assert lengths(calls(*range(20, 30))) == [(10, 1)]
    assert lengths(calls(*range(20, 50, 4))) == [(8, 4)]  # a draft of three
    assert lengths(calls(*range(20, 26), *range(31, 37))) == [(6, 1), (6, 1)]
    assert lengths(calls(20, 21, 22, 23)) == []  # by chance
    assert lengths(calls(4, 8, 12, 16, 20, 24)) == []  # twice as long is no draft
    assert lengths(calls(*range(20, 30), cached=-1)) == []
    assert lengths(calls(*range(20, 30), graded=1)) == []
    assert lengths(calls(*range(20, 26), batch=[1, 2, 3, 4, 5, 6])) == []


def test_scoring_texts_by_length_rises_evenly_now_and_then() -> None:
    texts = [20, 20, 21, 21, 23, 24, 25, 26, 27, 27, 27, 30, 31, 31, 31, 31]
    assert lengths(calls(*texts)) == []
    assert lengths(calls(*texts, callers=["b"] * 4 + ["a"] * 5 + ["b"] * 7)) == [(5, 1)]


def test_recordings_from_files_were_not_checked(any_recording: Analysis) -> None:
    assert status(any_recording, ABSENT) == "not_checked"


# --- a cache that is copied


class Attention(nn.Module):
    """Attention that keeps its keys and values: joined anew, or written into a buffer."""

    def __init__(self, width: int, room: int, *, joins: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.room, self.joins = room, joins

    def forward(self, x: torch.Tensor, past: Any) -> tuple[torch.Tensor, Any]:
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        first = past is None
        if self.joins:
            past = (
                (k, v)
                if first
                else tuple(torch.cat(pair, 2) for pair in zip(past, (k, v), strict=True))
            )
            k, v = past
        else:
            at, keys, values = past or (0, *(torch.zeros(b, 4, self.room, width // 4),) * 2)
            place = torch.arange(at, at + t)
            k, v = keys.index_copy_(2, place, k), values.index_copy_(2, place, v)
            past = (at + t, keys, values)
            k, v = k[:, :, : at + t], v[:, :, : at + t]
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=first)
        return self.out(out.transpose(1, 2).reshape(b, t, width)), past


class Layer(nn.Module):
    def __init__(self, width: int, room: int, *, joins: bool) -> None:
        super().__init__()
        self.norm, self.attn = nn.RMSNorm(width), Attention(width, room, joins=joins)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor, past: Any) -> tuple[torch.Tensor, Any]:
        a, past = self.attn(self.norm(x), past)
        x = x + a
        return x + self.mlp(x), past


class Chat(nn.Module):
    """A model with a cache kept by hand."""

    def __init__(self, room: int, *, joins: bool, width: int = 64) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(64, width), nn.Linear(width, 64)
        self.layers = nn.ModuleList(Layer(width, room, joins=joins) for _ in range(2))

    def forward(self, ids: torch.Tensor, past_key_values: Any = None) -> Any:
        x, new = self.emb(ids), []
        for i, layer in enumerate(self.layers):
            x, past = layer(x, past_key_values[i] if past_key_values else None)
            new.append(past)
        return self.head(x[:, -1:]), tuple(new)


def chat(*, joins: bool, tokens: int = 6) -> Analysis:
    model, ids = Chat(2100, joins=joins).eval(), prompt(4, 2048)
    with trace() as t, torch.inference_mode():
        logits, past = model(ids)
        for _ in range(tokens):
            logits, past = model(logits.argmax(-1), past_key_values=past)
    return t.analysis


def test_a_cache_that_is_joined_anew_is_named() -> None:
    analysis = chat(joins=True)
    finding = found(analysis, COPIED)
    assert finding is not None and finding.count == 6 * 2 * 2
    assert (finding.where.module, finding.where.operator) == ("layers.*.attn", "aten::cat")
    assert finding.steps == tuple(range(1, 7))
    assert finding.title.startswith("the KV cache is copied whole for each token: 4 joins of ")
    assert "Allocate the cache once" in finding.advice
    assert 0 < (finding.gain_ns or 0) < (finding.cost_ns or 0)
    assert status(analysis, ABSENT) == "clear"


def joining(longer: int) -> Analysis:
    """Eight decode steps of two layers with two joins each, of which so many take 150 us, the
    others 2 us as all that is done with a token."""
    maker, number = TraceMaker(), 0
    cat = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 4>(float*)"
    for step in range(8):
        at = 1000 * step
        call: dict[str, Any] = {"batch": 1, "tokens": 1, "cached": 1, "thread": 1}
        times = {"start_ns": 1000 * at, "end_ns": 1000 * (at + 990)}
        maker.side("root_calls", root="", type="Model", call="forward", **call, **times)
        maker.module("", "Model", at, 990)
        for layer in range(2):
            begin = at + 10 + 480 * layer
            maker.module(f"layers.{layer}", "Layer", begin, 470)
            maker.module(f"layers.{layer}.attn", "Attention", begin + 2, 450)
            kernels = [("aten::cat", cat, 5), ("aten::cat", cat, 205)]
            kernels += [("aten::scaled_dot_product_attention", "flash_fwd", 400)]
            kernels += [("aten::add", "add", 460)]
            for operator, kernel, place in kernels:
                joins = kernel == cat
                lasts = 150 if joins and number < longer else 2
                number += joins
                run = (begin + place + 3, begin + place + 3 + lasts)
                maker.launch(kernel, start=begin + place, run=run, operator=operator)
    return analyze(maker.build())


@pytest.mark.parametrize(("longer", "joins"), [(32, 32), (3, 0), (0, 0)])
def test_without_sizes_a_few_long_joins_hold_no_cache(longer: int, joins: int) -> None:
    """What loses its processor takes long, too."""
    finding = found(joining(longer), COPIED)
    assert (0 if finding is None else finding.count) == joins


def test_a_cache_that_is_written_in_place_is_clear() -> None:
    assert status(chat(joins=False), COPIED) == "clear"


def test_the_dynamic_cache_of_transformers_copies(llama: Any) -> None:
    with trace() as t:
        llama.generate(prompt(4, 1500), max_new_tokens=5, do_sample=False)
    finding = found(t.analysis, COPIED)
    assert finding is not None and "cache_implementation" in finding.advice
    held = sum(1500 + i for i in range(1, 5))
    assert finding.detail["bytes_written"] == 2 * 2 * 4 * held * 128 * 4
    assert str(finding.where.module) == "model.layers.*.self_attn"
    assert verdict(t.analysis).count("static") <= 2


@pytest.fixture(params=kineto_files("h200"), ids=lambda path: path.name.partition(".")[0])
def any_recording(request: pytest.FixtureRequest) -> Analysis:
    return analysis_of(request.param)


def test_caches_that_take_little_of_a_step_give_no_finding(any_recording: Analysis) -> None:
    assert found(any_recording, COPIED) is None

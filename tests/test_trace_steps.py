"""The decode loop is understood: what the calls of root modules say, live."""

from __future__ import annotations

import functools
import itertools
import json
import threading
from collections.abc import Callable, Generator
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from tests.live_models import (
    DECODERS,
    OwnModel,
    classifier,
    decoder,
    encoder,
    encoder_decoder,
    prompt,
    reward,
)
from tracer import trace
from tracer.collectors.modules.call_facts import (
    SeenCaches,
    cache_state,
    caches_among,
    call_facts,
    plain_facts,
    roles_of,
)

# transformers renames `past_key_values` and `gradient_checkpointing_enable`; both names work.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("one_thread", "quietly"),
]

NEW_TOKENS = 4
FACTS = ["batch", "tokens", "cached"]


def calls_of(program: Callable[[], object]) -> pd.DataFrame:
    """The root calls of a program, traced."""
    with trace(detail="modules") as t:
        program()
    assert [note for note in t.trace.notes if note.rule in ("capture.failed", "capture.busy")] == []
    return t.trace.table("root_calls")


def facts(calls: pd.DataFrame) -> list[tuple[int, ...]]:
    return [tuple(int(x) for x in row) for row in calls[FACTS].to_numpy()]


def phases_of(program: Callable[[], object]) -> dict[str, int]:
    """Steps of each phase in the report of a program, traced."""
    with trace() as t:
        program()
    found = t.report["phases"].items()
    return {name: phase["steps"] for name, phase in found if "part_of" not in phase}


def generate(model: Any, ids: torch.Tensor, **options: Any) -> Any:
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, **options}
    return model.generate(ids, **options)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_is_one_prefill_and_the_rest_decode(name: str, cache: str) -> None:
    model, ids = decoder(name), prompt(2, 5)
    calls = calls_of(lambda: generate(model, ids, cache_implementation=cache))
    assert facts(calls) == [(2, 5, 0), (2, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert set(calls["call"]) == {"generate"}
    assert calls["generation"].nunique() == 1
    assert set(calls["graded"]) == {0}


@pytest.mark.parametrize("name", DECODERS)
def test_the_report_counts_the_phases_of_a_generation(name: str) -> None:
    model, ids = decoder(name), prompt()
    assert phases_of(lambda: generate(model, ids)) == {"prefill": 1, "decode": NEW_TOKENS - 1}


def test_sampling_has_the_same_steps() -> None:
    model, ids = decoder("llama"), prompt(3, 6)
    calls = calls_of(lambda: generate(model, ids, do_sample=True))
    assert facts(calls) == [(3, 6, 0), (3, 1, 1), (3, 1, 1), (3, 1, 1)]


def test_beams_multiply_the_batch() -> None:
    model, ids = decoder("llama"), prompt(2, 5)
    calls = calls_of(lambda: generate(model, ids, num_beams=3))
    assert facts(calls) == [(6, 5, 0), (6, 1, 1), (6, 1, 1), (6, 1, 1)]


def test_each_generation_has_a_number_of_its_own() -> None:
    model, ids = decoder("llama"), prompt()
    calls = calls_of(lambda: [generate(model, ids) for _ in range(3)])
    assert list(calls["generation"]) == [0] * 4 + [1] * 4 + [2] * 4
    assert phases_of(lambda: [generate(model, ids) for _ in range(3)]) == {
        "prefill": 3,
        "decode": 3 * (NEW_TOKENS - 1),
    }


def test_an_encoder_and_the_first_decoder_call_make_the_prefill() -> None:
    model, ids = encoder_decoder(), prompt(2, 5)
    calls = calls_of(lambda: generate(model, ids))
    assert list(calls["part"]) == ["encoder", "decoder", "decoder", "decoder", "decoder"]
    assert list(calls["root"]) == ["encoder", "", "", "", ""]
    assert facts(calls) == [(2, 5, 0), (2, 1, 0), (2, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert phases_of(lambda: generate(model, ids)) == {"prefill": 1, "decode": NEW_TOKENS - 1}


def decode_by_hand(model: Any, ids: torch.Tensor) -> None:
    """A loop as people write it."""
    with torch.no_grad():
        out = model(ids, use_cache=True)
        for _ in range(NEW_TOKENS - 1):
            out = model(ids[:, :1], past_key_values=out.past_key_values, use_cache=True)


def test_a_loop_by_hand() -> None:
    model, ids = decoder("llama"), prompt()
    calls = calls_of(lambda: decode_by_hand(model, ids))
    assert facts(calls) == [(2, 5, 0), (2, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert set(calls["call"]) == {"forward"}
    assert set(calls["generation"]) == {-1}
    assert phases_of(lambda: decode_by_hand(model, ids)) == {
        "prefill": 1,
        "decode": NEW_TOKENS - 1,
    }


def test_a_loop_that_calls_only_the_inner_model() -> None:
    model, ids = decoder("llama"), prompt()
    calls = calls_of(lambda: decode_by_hand(model.model, ids))
    assert facts(calls) == [(2, 5, 0), (2, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert set(calls["type"]) == {"LlamaModel"}
    assert phases_of(lambda: decode_by_hand(model.model, ids)) == {
        "prefill": 1,
        "decode": NEW_TOKENS - 1,
    }


def test_the_inner_model_keeps_its_name_when_the_outer_one_was_called_before() -> None:
    model, ids = decoder("llama"), prompt()

    def program() -> None:
        model(ids)
        decode_by_hand(model.model, ids)

    calls = calls_of(program)
    assert list(calls["root"]) == ["", "model", "model", "model", "model"]


def test_a_loop_in_a_second_thread() -> None:
    model, ids = decoder("llama"), prompt()

    def in_thread() -> None:
        thread = threading.Thread(target=decode_by_hand, args=(model, ids))
        thread.start()
        thread.join()

    calls = calls_of(in_thread)
    assert facts(calls) == [(2, 5, 0), (2, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert threading.get_native_id() not in set(calls["thread"])
    assert phases_of(in_thread) == {"prefill": 1, "decode": NEW_TOKENS - 1}


def decode_own(model: OwnModel, ids: torch.Tensor) -> None:
    cache: list[torch.Tensor] = []
    with torch.no_grad():
        model(ids, cache)
        for _ in range(NEW_TOKENS - 1):
            model(ids[:, :1], cache)


def test_a_model_and_a_cache_of_ones_own() -> None:
    model, ids = OwnModel(), prompt()
    calls = calls_of(lambda: decode_own(model, ids))
    assert facts(calls) == [(2, 5, 0), (2, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert phases_of(lambda: decode_own(model, ids)) == {"prefill": 1, "decode": NEW_TOKENS - 1}


def forward_only(model: Any, ids: torch.Tensor) -> None:
    with torch.no_grad():
        for _ in range(3):
            model(ids)


def train(model: Any, ids: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("make", "program"),
    [
        (lambda: decoder("llama"), forward_only),
        (lambda: decoder("llama"), train),
        (encoder, forward_only),
    ],
    ids=["forward", "training", "encoder"],
)
def test_what_is_no_decode_loop_has_no_decode_steps(
    make: Callable[[], Any], program: Callable[[Any, torch.Tensor], None]
) -> None:
    model, ids = make(), prompt()
    phases = phases_of(lambda: program(model, ids))
    assert "decode" not in phases
    assert sum(phases.values()) == 3


def test_training_is_recorded_by_autograd() -> None:
    model, ids = decoder("llama"), prompt()
    calls = calls_of(lambda: train(model, ids))
    assert list(calls["graded"]) == [1, 1, 1]
    assert facts(calls) == [(2, 5, 0)] * 3


def test_recomputation_of_a_checkpoint_is_no_call() -> None:
    model, ids = decoder("llama"), prompt()
    model.train()
    model.gradient_checkpointing_enable()
    assert len(calls_of(lambda: train(model, ids))) == 3


def test_a_generate_method_of_ones_own_is_counted_from_its_first_call() -> None:
    class Generating(OwnModel):
        def generate(self, ids: torch.Tensor) -> torch.Tensor:
            decode_own(self, ids)
            return ids

    model, ids = Generating(), prompt()
    calls = calls_of(lambda: [model.generate(ids) for _ in range(2)])
    assert list(calls["generation"]) == [0] * NEW_TOKENS + [1] * NEW_TOKENS
    assert "__wrapped__" not in vars(Generating.generate)


def test_what_a_generation_generates_meanwhile_is_part_of_it() -> None:
    """Also in the first one, which runs already when its class is seen."""

    class Assisted(OwnModel):
        def generate(self, ids: torch.Tensor, draft: Any = None) -> torch.Tensor:
            for turn in range(NEW_TOKENS):
                if draft is not None and turn:
                    draft.generate(ids)
                self(ids, [])
            return ids

    target, draft, ids = Assisted(), Assisted(), prompt()
    calls = calls_of(lambda: [target.generate(ids, draft) for _ in range(2)])
    each = NEW_TOKENS + (NEW_TOKENS - 1) * NEW_TOKENS
    assert list(calls["generation"]) == [0] * each + [1] * each


def test_a_loop_over_prompts_is_no_generation_though_it_is_called_so() -> None:
    class Generating(OwnModel):
        def generate(self, ids: torch.Tensor) -> torch.Tensor:
            decode_own(self, ids)
            return ids

    class Pipeline:
        def generate(self, prompts: list[torch.Tensor]) -> list[torch.Tensor]:
            return [model.generate(ids) for ids in prompts]

    model, pipeline = Generating(), Pipeline()
    calls = calls_of(lambda: pipeline.generate([prompt()] * 3))
    assert list(calls["generation"]) == [n for n in range(3) for _ in range(NEW_TOKENS)]


def test_a_generator_method_is_found_by_its_frame() -> None:
    class Streaming(OwnModel):
        def generate(self, ids: torch.Tensor) -> Generator[torch.Tensor]:
            cache: list[torch.Tensor] = []
            yield self(ids, cache)
            for _ in range(2):
                yield self(ids[:, :1], cache)

    model, ids = Streaming(), prompt()
    calls = calls_of(lambda: list(model.generate(ids)))
    assert set(calls["call"]) == {"generate"}
    assert calls["generation"].nunique() == 1


def test_a_loss_is_no_model() -> None:
    loss = nn.CrossEntropyLoss()
    logits, labels = torch.randn(4, 8), torch.randint(8, (4,))
    assert len(calls_of(lambda: [loss(logits, labels) for _ in range(3)])) == 0


def test_a_call_that_raises_is_a_call() -> None:
    model, ids = OwnModel(), prompt()

    def program() -> None:
        with pytest.raises(IndexError):
            model(ids + VOCABULARY_OVERFLOW)
        model(ids)

    assert facts(calls_of(program)) == [(2, 5, 0), (2, 5, 0)]


VOCABULARY_OVERFLOW = 1000


def test_a_call_through_a_compiled_call_of_transformers_counts() -> None:
    model, ids = decoder("llama"), prompt()
    raw = model.__class__.__mro__

    def program() -> None:
        model.get_compiled_call = type(model).get_compiled_call.__get__(model)
        compiled = model.get_compiled_call(_EagerCompile())
        with torch.no_grad():
            compiled(input_ids=ids, use_cache=False)
            compiled(input_ids=ids, use_cache=False)

    calls = calls_of(program)
    assert facts(calls) == [(2, 5, 0)] * 2
    assert model.__class__.__mro__ == raw


class _EagerCompile:
    """What transformers asks of a compile configuration."""

    def to_dict(self) -> dict[str, Any]:
        return {"backend": "eager"}


# What arguments alone say


def _facts(**arguments: Any) -> tuple[int, int, int]:
    roles, values = roles_of(tuple(arguments)), tuple(arguments.values())
    plain, caches = plain_facts(roles, values), caches_among(roles, values)
    found = call_facts(plain, caches, SeenCaches(), keeps_cache=False)
    return found.batch, found.tokens, found.cached


IDS = torch.zeros(3, 7, dtype=torch.long)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"input_ids": IDS}, (3, 7, 0)),
        ({"attention_mask": IDS.bool(), "input_ids": IDS[:, :1]}, (3, 1, 0)),
        ({"position_ids": IDS, "inputs_embeds": torch.zeros(3, 7, 8)}, (3, 7, 0)),
        ({"pixel_values": torch.zeros(2, 3, 8, 8)}, (2, -1, 0)),
        ({"input_features": torch.zeros(2, 80, 30)}, (2, -1, 0)),
        ({"x": torch.zeros(5, 16)}, (5, -1, 0)),
        ({"tokens": IDS[:, :1], "start_pos": 7}, (3, 1, 1)),
        ({"tokens": IDS, "start_pos": 0}, (3, 7, 0)),
        ({"input_ids": IDS, "use_cache": True, "past_key_values": None}, (3, 7, 0)),
        ({"input_ids": IDS, "past_key_values": ((torch.zeros(3, 2, 4, 8),) * 2,)}, (3, 7, 1)),
        ({"ids": IDS, "kv_cache": []}, (3, 7, 0)),
        ({"ids": IDS, "kv_cache": [torch.zeros(3, 9, 8)]}, (3, 7, -1)),
        ({"flat": torch.zeros(9, dtype=torch.long)}, (-1, -1, 0)),
        ({}, (-1, -1, 0)),
    ],
)
def test_what_arguments_say(arguments: dict[str, Any], expected: tuple[int, int, int]) -> None:
    assert _facts(**arguments) == expected


def test_a_preallocated_cache_is_filled_once_a_call_has_used_it() -> None:
    seen, buffers = SeenCaches(), [torch.zeros(2, 9, 8)]
    assert cache_state(buffers, seen) == -1
    seen.add(buffers)
    assert cache_state(buffers, seen) == 1
    assert cache_state([torch.zeros(2, 9, 8)], seen) == -1


def test_a_cache_that_was_freed_is_not_taken_for_another() -> None:
    seen = SeenCaches()
    cache = OwnModel()
    seen.add(cache)
    assert cache in seen
    del cache
    assert seen._anchors == {}


def test_no_value_of_a_tensor_is_read() -> None:
    """On the meta device there are no values: reading one would raise."""
    ids = torch.zeros(2, 1, dtype=torch.long, device="meta")
    cache = [torch.zeros(2, 3, 4, device="meta")]
    assert _facts(input_ids=ids, cache=cache, mask=ids.bool()) == (2, 1, -1)


def _learning(*, references: int, evaluations: int) -> list[tuple[str, int]]:
    """Two epochs of four training steps, each with so many calls of a reference before it, and so
    many calls of an evaluation after each epoch: phases in a row, with their numbers."""
    net = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with trace() as t:
        for _ in range(2):
            for _ in range(4):
                with torch.no_grad():
                    for _ in range(references):
                        net(torch.ones(2, 8))
                net(torch.ones(2, 8)).sum().backward()
                optimizer.step()
            with torch.no_grad():
                for _ in range(evaluations):
                    net(torch.ones(2, 8))
    phases = t.analysis.steps["phase"].astype(str)
    return [(phase, len(list(rows))) for phase, rows in itertools.groupby(phases)]


def test_an_evaluation_between_training_steps_is_in_none_of_them() -> None:
    epoch = [("training", 4), ("evaluation", 3)]
    assert _learning(references=0, evaluations=3) == epoch * 2
    assert _learning(references=1, evaluations=3) == epoch * 2


def test_a_reference_that_is_asked_first_belongs_to_the_training_step() -> None:
    assert _learning(references=1, evaluations=0) == [("training", 8)]


def test_a_model_without_a_cache_does_a_forward_pass() -> None:
    """A cache decides, and not that many tokens come in: an encoder, a scorer, a model of images,
    a language model that is asked for all of its tokens at once."""
    own, ids = OwnModel(), prompt()
    for model in (encoder(), reward(), own):
        assert phases_of(functools.partial(forward_only, model, ids)) == {"forward": 3}
    images = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(), nn.Linear(8 * 4, 2))
    pixels = torch.ones(2, 3, 8, 8)
    assert phases_of(lambda: forward_only(images, pixels)) == {"forward": 3}


@pytest.mark.parametrize("detail", ["light", "modules"])
def test_a_prompt_that_nobody_continues_is_prefill_where_it_fills_a_cache(detail: Any) -> None:
    model, own, ids = decoder("llama"), OwnModel(), prompt()
    with trace(detail=detail) as t, torch.no_grad():
        model(ids, use_cache=True)
        own(ids, [])
        model(ids, use_cache=False)
        own(ids)
    assert list(t.analysis.steps["phase"]) == ["prefill", "prefill", "forward", "forward"]


def scored(model: Any, ids: torch.Tensor) -> Any:
    return model(ids, labels=torch.zeros(len(ids), dtype=torch.long)).loss


def test_a_classifier_is_evaluated_where_it_was_trained_before() -> None:
    model, ids = classifier(), prompt()

    def program(learn: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        model.train()
        for _ in range(3 * learn):
            scored(model, ids).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for _ in range(4):
                scored(model, ids)

    assert phases_of(lambda: program(True)) == {"training": 3, "evaluation": 4}
    assert phases_of(lambda: program(False)) == {"forward": 4}


def _mixed(*, graded: bool, every: int = 2, references: int = 0) -> list[tuple[str, int]]:
    """Six training steps of accumulated passes, some with a reference that is asked in training
    mode, and after every so many an evaluation in evaluation mode: phases in a row."""
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout()), torch.ones(2, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with trace() as t:
        for i in range(6):
            with torch.no_grad():
                for _ in range(references):
                    net(x)
            for _ in range(2):
                net(x).sum().backward()
            optimizer.step()
            if i % every == every - 1:
                net.eval()
                with torch.set_grad_enabled(graded):
                    for _ in range(3):
                        net(x)
                net.train()
    phases = t.analysis.steps["phase"].astype(str)
    return [(phase, len(list(rows))) for phase, rows in itertools.groupby(phases)]


@pytest.mark.parametrize("graded", [False, True], ids=["no_grad", "recorded"])
def test_the_mode_of_a_model_tells_an_evaluation(graded: bool) -> None:
    """However often it comes, and also where autograd records it for nobody."""
    assert _mixed(graded=graded) == [("training", 2), ("evaluation", 3)] * 3
    assert _mixed(graded=graded, every=1) == [("training", 1), ("evaluation", 3)] * 6
    assert _mixed(graded=graded, references=1) == [("training", 2), ("evaluation", 3)] * 3


def test_an_evaluation_in_every_other_step_is_in_none() -> None:
    """In training mode, too: a step without it is as usual as one with it."""
    net, x = nn.Linear(8, 4), torch.ones(2, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def program() -> None:
        for i in range(6):
            net(x).sum().backward()
            optimizer.step()
            with torch.no_grad():
                for _ in range(3 * (i % 2)):
                    net(x)

    assert phases_of(program) == {"training": 6, "evaluation": 9}


def test_a_model_that_generates_while_it_is_trained_decodes() -> None:
    model, ids = decoder("llama"), prompt()

    def program() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(2):
            model.train()
            model(ids, labels=ids).loss.backward()
            optimizer.step()
        model.eval()
        generate(model, ids)
        decode_by_hand(model, ids)

    wanted = {"training": 2, "prefill": 2, "decode": 2 * (NEW_TOKENS - 1)}
    assert phases_of(program) == wanted


def test_callers_are_the_lines_of_the_user() -> None:
    model, ids = OwnModel(), prompt()
    calls = calls_of(lambda: forward_only(model, ids))
    (chain,) = {str(text) for text in calls["callers"]}
    (file, line, function), *around = json.loads(chain)
    code = forward_only.__code__
    assert (file, function) == (code.co_filename, code.co_name)
    assert line == code.co_firstlineno + 3
    assert "calls_of" in [function for _, _, function in around]


def test_a_step_in_which_the_limit_was_reached_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last range is open then: the profiler tells that it ends with the recording."""
    import tracer.live.capture as capture

    model, ids = OwnModel(64), prompt(2, 8)
    reached: list[int] = []

    def reach(self: Any, now_ns: int) -> None:
        reached.append(now_ns)
        if len(reached) == 6:
            self._reach_limit("so many calls", "calls")

    monkeypatch.setattr(capture.Capture, "_look_at_limits", reach)
    with trace() as t:
        for _ in range(4):
            with torch.profiler.record_function("train_step"):
                for _ in range(4):
                    model(ids).mean().backward()
                torch.optim.SGD(model.parameters(), lr=0.1).step()
    steps = t.analysis.steps
    assert steps["tokens"].tolist() == [4 * 2 * 8]
    assert [note.count for note in t.analysis.notes if note.rule == "trace.step_cut_off"] == [1]
    (phase,) = (phase for phase in t.analysis.phases if phase.name == "training")
    assert phase.tokens_per_second == pytest.approx(64e9 / int(steps["wall_ns"].iloc[0]))

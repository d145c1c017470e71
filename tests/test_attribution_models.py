"""Groups of live models of many habits against what their modules are, class by class."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from tests.live_models import quiet
from tests.test_position_models import small
from tracer import trace
from tracer.analysis import BUCKETS, Analysis

pytestmark = pytest.mark.usefixtures("one_thread")


class Model(NamedTuple):
    """A kind of transformers, and the classes or names of the modules that are its blocks."""

    kind: str
    attention: tuple[str, ...]
    ffn: tuple[str, ...]


MODELS = [
    Model("bert", ("BertAttention",), ("BertIntermediate", "BertOutput")),
    Model("albert", ("AlbertAttention",), ("ffn", "ffn_output", "activation")),
    Model("bart", ("BartAttention",), ("fc1", "fc2", "activation_fn")),
    Model("t5", ("T5LayerSelfAttention", "T5LayerCrossAttention"), ("T5LayerFF",)),
    Model("rwkv", ("RwkvSelfAttention",), ("RwkvFeedForward",)),
    Model("fnet", ("FNetFourierTransform",), ("FNetIntermediate", "FNetOutput")),
    Model("bitnet", ("BitNetAttention", "BitNetRotaryEmbedding"), ("BitNetMLP",)),
]


def group_of(path: str, types: dict[str, str], model: Model) -> str:
    """The group of what runs right in a module: that of the innermost block around it. A norm is
    one of its own, but for those of an attention."""
    around = [path.rsplit(".", cut)[0] if cut else path for cut in range(path.count(".") + 1)]
    words = [{types.get(place, ""), place.rpartition(".")[2]} for place in around]
    attends = any(word & set(model.attention) for word in words)
    if "norm" in types.get(path, "").lower():
        return "attention" if attends else "other"
    for word in words:
        for group in ("attention", "ffn"):
            if word & set(getattr(model, group)):
                return group
    return "other"


def misplaced(analysis: Analysis, model: Model) -> set[str]:
    """What got another group than its module has: module, operator, both groups."""
    modules = analysis.modules
    types = dict(zip(modules["path"], modules["type"], strict=True))
    work = analysis.work[analysis.work["module"] >= 0]
    names = analysis.trace.events["name"].astype(str).to_numpy()[work["event"]]
    wrong = set()
    for module, bucket, name in zip(work["module"], work["bucket"], names, strict=True):
        path, found = modules["path"][module], BUCKETS[bucket][0]
        if "dropout" in name:
            continue  # it launches nothing, and belongs to what stands before it
        wanted = group_of(path, types, model)
        if found != wanted:
            wrong.add(f"{path} {name}: {found}, not {wanted}")
    return wrong


def inputs_of(model: Any) -> dict[str, Any]:
    inputs = {"input_ids": torch.randint(3, 128, (2, 12))}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, 128, (2, 4))
    return inputs


def analysis_of(model: Any, call: Callable[[], Any]) -> Analysis:
    with torch.no_grad(), trace(model, detail="full") as t:
        call()
    return t.analysis


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_every_operator_has_the_group_of_its_module(model: Model) -> None:
    if model.kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {model.kind}")
    torch.manual_seed(0)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = small(model.kind).float()
        inputs = inputs_of(made)
        analysis = analysis_of(made, lambda: made(**inputs))
    assert (analysis.work["module"] >= 0).sum() > 100
    assert misplaced(analysis, model) == set()

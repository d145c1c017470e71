"""The layer pattern on a CPU, whose kernels are operators: no module ranges are needed there."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.live_models import quiet
from tests.stripped import without_modules
from tests.test_position_models import small
from tracer import trace
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze
from tracer.analyzers.names.operator_names import COMPUTING_NOTHING

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = ["llama", "gpt2", "mixtral", "deepseek_v3", "bart", "rwkv", "imagegpt"]
TRAINED = ["llama", "mixtral", "bert", "persimmon", "deepseek_v2", "mpnet", "t5"]


def recorded(kind: str, *, trains: bool) -> Analysis:
    torch.manual_seed(0)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = small(kind).float().train(trains)
    ids = torch.randint(3, 128, (2, 12))
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.set_grad_enabled(trains), trace(model, metrics=False) as t:
        for _ in range(2):
            logits = model(**inputs)[0]
            if trains:
                logits.square().mean().backward()
                optimizer.step()
    return t.analysis


def groups(analysis: Analysis) -> NDArray[np.object_]:
    return np.array([group for group, _ in BUCKETS], dtype=object)[analysis.work["bucket"]]


@pytest.mark.parametrize(
    ("kind", "trains"),
    [*((kind, False) for kind in KINDS), *((kind, True) for kind in TRAINED)],
)
def test_operators_have_the_groups_of_their_modules(kind: str, trains: bool) -> None:
    known = recorded(kind, trains=trains)
    found = analyze(without_modules(known.trace))
    events = known.trace.events.iloc[known.work["event"]]
    computes = ~events["name"].astype(str).str.removeprefix("aten::").isin(COMPUTING_NOTHING)
    duration = (events["duration_ns"] * computes).to_numpy()  # a first view can be long by chance
    same = groups(known) == groups(found)
    assert set(groups(found)) >= {"attention", "ffn", "other"}
    assert duration[same].sum() >= 0.995 * duration.sum()


def test_what_attention_looks_up_for_distances_is_its_own() -> None:
    """The tables of T5: of words before the layers, of distances in the first attention."""
    known = recorded("t5", trains=False)
    found = analyze(without_modules(known.trace))
    names = known.trace.events["name"].astype(str).to_numpy()[known.work["event"]]
    gathers = names == "aten::index_select"
    assert set(groups(known)[gathers]) == {"attention", "other"}
    assert (groups(found)[gathers] == groups(known)[gathers]).all()

"""Groups of live models of many habits against what their modules are, class by class."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from tests.emulated import emulate
from tests.live_models import quiet
from tests.stripped import device_alone, with_nameless_modules
from tests.test_position_models import agreement, small
from tracer import trace
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze

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
    # Named after a norm, and with a loss in the name.
    Model(
        "roberta-prelayernorm",
        ("RobertaPreLayerNormAttention",),
        ("RobertaPreLayerNormIntermediate", "RobertaPreLayerNormOutput"),
    ),
    Model("yolos", ("YolosAttention",), ("YolosIntermediate", "YolosOutput")),
]

NAMELESS_TOO = [model for model in MODELS if model.kind in ("bert", "bart", "t5", "bitnet")]
MODELS_BY_PARTS = [
    Model("llama", ("LlamaAttention", "LlamaRotaryEmbedding"), ("LlamaMLP",)),
    Model("gpt2", ("GPT2Attention",), ("GPT2MLP",)),
    Model("falcon", ("FalconAttention", "FalconRotaryEmbedding"), ("FalconMLP",)),
    Model("gpt_neox", ("GPTNeoXAttention", "GPTNeoXRotaryEmbedding"), ("GPTNeoXMLP",)),
    Model("mixtral", ("MixtralAttention", "MixtralRotaryEmbedding"), ("mlp",)),
    Model("deepseek_v3", ("DeepseekV3Attention", "DeepseekV3RotaryEmbedding"), ("mlp",)),
    Model("moshi", ("MoshiAttention",), ("MoshiGatingMLP",)),
    Model("lfm2", ("Lfm2Attention", "Lfm2ShortConv", "Lfm2RotaryEmbedding"), ("Lfm2MLP",)),
]


def group_of(path: str, types: dict[str, str], model: Model) -> str:
    """The group of what runs right in a module: that of the innermost block around it. A norm is
    one of its own, but for those of an attention."""
    around = [path.rsplit(".", cut)[0] if cut else path for cut in range(path.count(".") + 1)]
    words = [{types.get(place, ""), place.rpartition(".")[2]} for place in around]
    attends = any(word & set(model.attention) for word in words)
    if types.get(path, "").lower().endswith("norm"):
        return "attention" if attends else "other"
    for word in words:
        for group in ("attention", "ffn"):
            if word & set(getattr(model, group)):
                return group
    return "other"


def misplaced(analysis: Analysis, model: Model, known: Analysis | None = None) -> set[str]:
    """What got another group than its module has: module, operator, both groups. `known`: where
    the modules have their names."""
    known = known or analysis
    modules = known.modules
    types = dict(zip(modules["path"], modules["type"], strict=True))
    work = known.work.assign(found=analysis.work["bucket"])[known.work["module"] >= 0]
    names = known.trace.events["name"].astype(str).to_numpy()[work["event"]]
    wrong = set()
    for module, bucket, name in zip(work["module"], work["found"], names, strict=True):
        path, found = modules["path"][module], BUCKETS[bucket][0]
        if "dropout" in name:
            continue  # it launches nothing, and belongs to what stands before it
        wanted = group_of(path, types, model)
        if found != wanted:
            wrong.add(f"{path} {name}: {found}, not {wanted}")
    return wrong


def inputs_of(model: Any) -> dict[str, Any]:
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.rand(2, 3, *model.config.image_size)}
    inputs = {"input_ids": torch.randint(3, 128, (2, 12))}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, 128, (2, 4))
    return inputs


def analysis_of(model: Any, call: Callable[[], Any]) -> Analysis:
    with torch.no_grad(), trace(model, detail="full") as t:
        call()
    return t.analysis


def analysis_of_kind(kind: str) -> Analysis:
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {kind}")
    torch.manual_seed(0)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = small(kind).float()
        inputs = inputs_of(made)
        return analysis_of(made, lambda: made(**inputs))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_every_operator_has_the_group_of_its_module(model: Model) -> None:
    analysis = analysis_of_kind(model.kind)
    assert (analysis.work["module"] >= 0).sum() > 100
    assert misplaced(analysis, model) == set()


@pytest.mark.parametrize("model", [*NAMELESS_TOO, *MODELS_BY_PARTS], ids=lambda model: model.kind)
def test_modules_that_no_name_gives_away(model: Model) -> None:
    known = analysis_of_kind(model.kind)
    found = analyze(with_nameless_modules(known.trace))
    assert misplaced(found, model, known) == set()


# --- what no name gives away


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def by_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v


def by_einsum(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / 4
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v)


def by_exponents(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / 4
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


def by_powers_of_e(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights: torch.Tensor = math.e ** (q @ k.transpose(-1, -2) / 4)
    return weights / weights.sum(-1, keepdim=True) @ v


def divided_at_the_end(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.exp(q @ k.transpose(-1, -2) / 4)
    return weights @ v / weights.sum(-1, keepdim=True)


def in_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    largest, divisor = torch.full_like(q[..., :1], -1e9), torch.zeros_like(q[..., :1])
    out = torch.zeros_like(q)
    for start in range(0, k.shape[2], 4):
        keys, values = k[:, :, start : start + 4], v[:, :, start : start + 4]
        scores = q @ keys.transpose(-1, -2) / 4
        larger = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights, shrunk = torch.exp(scores - larger), torch.exp(largest - larger)
        divisor = divisor * shrunk + weights.sum(-1, keepdim=True)
        out, largest = out * shrunk + weights @ values, larger
    return out / divisor


Core = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
CORES: list[Core] = [
    *(fused, by_softmax, by_einsum, by_exponents, by_powers_of_e, divided_at_the_end, in_blocks)
]


class Mixes(nn.Module):
    def __init__(self, core: Core) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(64, 64) for _ in range(4))
        self.core = core

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (4, 16)).transpose(1, 2) for p in (self.a, self.b, self.c))
        out: torch.Tensor = self.d(self.core(q, k, v).transpose(1, 2).flatten(2))
        return out


class Feeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 96), nn.Linear(64, 96), nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.c(functional.silu(self.a(x)) * self.b(x))
        return out


class Both(nn.Module):
    def __init__(self, core: Core) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = Mixes(core), Feeds(), nn.LayerNorm(64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.a(self.c(x))
        out: torch.Tensor = x + self.b(self.d(x))
        return out


class Nameless(nn.Module):
    def __init__(self, core: Core) -> None:
        super().__init__()
        self.a, self.c, self.d = nn.Embedding(128, 64), nn.LayerNorm(64), nn.Linear(64, 128)
        self.b = nn.ModuleList(Both(core) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.a(ids)
        for block in self.b:
            x = block(x)
        out: torch.Tensor = self.d(self.c(x))
        return out


NAMELESS = Model("", ("Mixes",), ("Feeds",))


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.__name__)
def test_the_parts_of_a_layer_are_told_by_what_they_compute(core: Core) -> None:
    model, ids = Nameless(core).eval(), torch.randint(128, (2, 12))
    assert misplaced(analysis_of(model, lambda: model(ids)), NAMELESS) == set()


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.__name__)
def test_the_order_of_kernels_tells_the_parts_of_a_layer(core: Core, tmp_path: Path) -> None:
    model, ids = Nameless(core).eval(), torch.randint(128, (2, 12))
    recorded = emulate(model, lambda: [model(ids) for _ in range(2)], tmp_path)
    known, found = analyze(recorded), analyze(device_alone(recorded))
    assert misplaced(known, NAMELESS) == set()
    assert agreement(found, known) == 1.0


class Modulation(nn.Module):
    """Gates what it projects with convolutions of it, as focal modulation does."""

    def __init__(self) -> None:
        super().__init__()
        self.proj_in, self.proj_out = nn.Linear(64, 128), nn.Linear(64, 64)
        self.context = nn.Conv1d(64, 64, 3, padding=1, groups=64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, context = self.proj_in(x).chunk(2, -1)
        mixed = self.context(context.transpose(1, 2)).transpose(1, 2)
        out: torch.Tensor = self.proj_out(gate * mixed)
        return out


class Modulated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.modulation, self.mlp, self.norm = Modulation(), Feeds(), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.modulation(self.norm(x))
        out: torch.Tensor = x + self.mlp(x)
        return out


class Speech(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.subsampling = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 64))
        self.layers = nn.ModuleList(Modulated() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.subsampling(x)
        for layer in self.layers:
            x = layer(x)
        return x


def test_words_that_mean_something_else() -> None:
    """A modulation that convolves mixes and is no norm; subsampling chooses no token."""
    model, x = Speech().eval(), torch.randn(2, 12, 16)
    modules = analysis_of(model, lambda: model(x)).modules
    roles = dict(zip(modules["path"], modules["role"], strict=True))
    assert (roles["layers.0.modulation"], roles["layers.0.mlp"]) == ("mixer", "ffn")
    assert roles["subsampling"] not in ("sampling", "norm")

"""Parameters by formula against transformers on the meta device, caches against real ones."""

from __future__ import annotations

import dataclasses
import json
import random
from importlib.resources import files
from typing import Any

import pytest

from tests.plan_configs import LLAMA_8B, LLAMA_70B, PUBLISHED
from tests.plan_tiny import random_config, tiny_config
from tracer.errors import InputError
from tracer.sizing.config import Config
from tracer.sizing.families import FAMILIES, shape_by_formula
from tracer.sizing.memory import cache_bytes, transformers_cache_bytes
from tracer.sizing.parameters import shape_by_transformers
from tracer.sizing.shape import ModelShape
from tracer.sizing.sources import shape_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ALL = {"llama-3.1-8b": LLAMA_8B, "llama-3.1-70b": LLAMA_70B, **PUBLISHED}


pytestmark = pytest.mark.usefixtures("one_thread", "quietly")


def formula(values: dict[str, Any]) -> ModelShape:
    shape = shape_by_formula(Config(values))
    assert shape is not None
    return shape


def build(values: dict[str, Any], device: str = "meta") -> Any:
    config = transformers.CONFIG_MAPPING[values["model_type"]].from_dict(dict(values))
    with torch.device(device):
        return getattr(transformers, values["architectures"][0])._from_config(config)


def count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ALL)
def test_parameters_of_published_shapes_are_exact(name: str) -> None:
    assert formula(ALL[name]).parameters == count(build(ALL[name]))


def test_llama_counts_from_its_paper() -> None:
    assert formula(LLAMA_8B).parameters == 8_030_261_248
    assert formula(LLAMA_70B).parameters == 70_553_706_496


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mixtral-8x7b", 12.9), ("deepseek-v3", 37.6), ("qwen3-30b-a3b", 3.35), ("gpt2", 0.124)],
)
def test_active_parameters(name: str, billions: float) -> None:
    assert formula(ALL[name]).active_parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("model_type", sorted({*FAMILIES} - {"kimi_k2"}))  # not in transformers
def test_parameters_with_every_switch_of_a_family(model_type: str) -> None:
    """Random sizes and switches: biases, tied tables, norms, windows, experts."""
    dice = random.Random(model_type)
    for _ in range(3):
        values = random_config(model_type, dice)
        config = transformers.CONFIG_MAPPING[model_type].from_dict(dict(values))
        expected = _auto_count(config)
        for written in (values, config.to_dict(), config.to_diff_dict()):
            assert formula(written).parameters == expected, written


def _auto_count(config: Any) -> int:
    if config.model_type == "whisper":
        auto = transformers.AutoModelForSpeechSeq2Seq
    elif config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    elif "bert" in config.model_type:
        auto = transformers.AutoModelForMaskedLM
    else:
        auto = transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return count(auto.from_config(config))


def test_defaults_are_those_of_the_classes() -> None:
    text = files("tracer.sizing").joinpath("defaults.json").read_text("utf-8")
    for model_type, known in json.loads(text).items():
        config_class = transformers.CONFIG_MAPPING[model_type]
        defaults = {field.name: field.default for field in dataclasses.fields(config_class)}
        for key, value in known["defaults"].items():
            assert defaults[key] == value, (model_type, key)


@pytest.mark.parametrize("name", [name for name in ALL if name != "llama-3.1-70b"])
@pytest.mark.parametrize("tokens", [5, 13])
def test_cache_bytes_are_those_of_a_real_cache(name: str, tokens: int) -> None:
    """A tiny instance of each architecture, past its window with 13 tokens."""
    values = tiny_config(ALL[name])
    model = build(values, "cpu").to(torch.bfloat16).eval()
    shape = formula(values)
    assert shape.parameters == count(model)
    inputs, source = _inputs(values, tokens)
    with torch.no_grad():
        output = model(**inputs, use_cache=True)
    kept = _kept_bytes(output)
    assert transformers_cache_bytes(shape, tokens, 2, source_tokens=source) == kept
    if tokens < 8 and name != "falcon-40b":  # below the window every runtime keeps the same
        assert cache_bytes(shape, tokens, 2, source_tokens=source) == kept


def test_grouped_falcon_keeps_a_copy_a_head_in_transformers_alone() -> None:
    shape = formula(PUBLISHED["falcon-40b"])
    own, copied = cache_bytes(shape, 10, 2), transformers_cache_bytes(shape, 10, 2)
    assert (own, copied) == (60 * 2 * 8 * 64 * 2 * 10, 60 * 2 * 128 * 64 * 2 * 10)


def _inputs(values: dict[str, Any], tokens: int) -> tuple[dict[str, Any], int]:
    ids = torch.full((1, tokens), 3, dtype=torch.long)
    if values["model_type"] == "whisper":
        sound = torch.zeros(1, values["num_mel_bins"], 2 * values["max_source_positions"])
        features = sound.to(torch.bfloat16)
        source = values["max_source_positions"]
        return {"input_features": features, "decoder_input_ids": ids}, source
    if values.get("is_encoder_decoder"):
        return {"input_ids": torch.ones(1, 7, dtype=torch.long), "decoder_input_ids": ids}, 7
    return {"input_ids": ids}, 0


def _kept_bytes(output: Any) -> int:
    cache = next(
        (
            found
            for name in ("cache", "past_key_values", "cache_params")
            if (found := getattr(output, name, None)) is not None
        ),
        None,
    )
    if cache is None:
        return 0
    parts = [
        getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")
    ]
    halves = [part for part in parts if part is not None] or [cache]
    tensors = [tensor for half in halves for layer in half.layers for tensor in _tensors(layer)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _tensors(layer: Any) -> list[Any]:
    found = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
    for name in ("conv_states", "recurrent_states"):
        found += list((getattr(layer, name, None) or {}).values())
    return [tensor for tensor in found if tensor is not None]


def test_counting_by_transformers_agrees_and_says_so() -> None:
    values = tiny_config(PUBLISHED["deepseek-v3"])
    counted = shape_by_transformers(Config(values))
    assert isinstance(counted, ModelShape)
    assert counted.parameters == formula(values).parameters
    assert counted.caches == formula(values).caches
    assert counted.count("experts") == formula(values).count("experts")
    assert counted.basis.startswith("transformers ")
    assert counted.basis.endswith("(DeepseekV3ForCausalLM)")


def test_an_unknown_family_is_counted_by_transformers() -> None:
    """A hybrid that no formula covers: its cache is what a forward on the meta device keeps."""
    values = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
        "pad_token_id": 0,
    }
    assert "nemotron_h" not in FAMILIES
    shape = shape_of(Config(values))
    model = build(values, "cpu").to(torch.bfloat16).eval()
    assert shape.parameters == count(model)
    assert shape.layers == 4
    assert "meta device" in shape.basis
    with torch.no_grad():
        kept = _kept_bytes(model(torch.ones(1, 13, dtype=torch.long), use_cache=True))
    assert transformers_cache_bytes(shape, 13, 2) == kept


def test_a_type_nobody_knows_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tracer.sizing.sources.shape_by_transformers",
        lambda config: "transformers does not know `no_such_type`",
    )
    with pytest.raises(InputError, match=r"does not know `no_such_type`.*--params"):
        shape_of(Config({"model_type": "no_such_type"}))


def test_a_live_model_gives_the_same_as_its_config() -> None:
    values = tiny_config(PUBLISHED["gemma-2-9b"])
    shape = shape_of(build(values, "cpu"))
    assert shape.parameters == formula(values).parameters
    assert shape.caches == formula(values).caches
    assert shape.basis == "the model object"


def test_a_wrapped_language_model_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tracer.sizing.sources.shape_by_transformers", lambda config: "No module named transformers"
    )
    text = tiny_config(PUBLISHED["gemma-3-1b"])
    wrapped = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"hidden_size": 8},
    }
    shape = shape_of(Config(wrapped))
    assert shape.parameters == formula(text).parameters
    assert "the language model alone" in shape.notes[0]

"""The model types whose weights and caches are known exactly from their config alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, cast

from tracer.sizing.config import Config
from tracer.sizing.decoders import build_bloom, build_decoder, build_falcon, build_opt, has_head
from tracer.sizing.seq2seq import SEQ2SEQ, build_bert
from tracer.sizing.shape import ModelShape
from tracer.sizing.statespace import STATE_SPACE
from tracer.sizing.traits import TRAITS

Builder = Callable[[Config], "ModelShape | None"]

FAMILIES: dict[str, Builder] = {
    **dict.fromkeys(TRAITS, build_decoder),
    "bloom": build_bloom,
    "opt": build_opt,
    "falcon": build_falcon,
    "bert": build_bert,
    "roberta": build_bert,
    "xlm-roberta": build_bert,
    **SEQ2SEQ,
    **STATE_SPACE,
}
# Other names of the same structure: wrappers whose inner config says less, and published aliases.
_SAME_AS = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "kimi_k2": "deepseek_v3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
_HEADED = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MaskedLM", "Model")


@lru_cache(maxsize=1)
def _published_defaults() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    text = files("tracer.sizing").joinpath("defaults.json").read_text(encoding="utf-8")
    return cast("Mapping[str, Mapping[str, Mapping[str, Any]]]", json.loads(text))


def with_defaults(config: Config) -> Config:
    """The config with what its class would assume for missing keys, and with one name a key."""
    model_type = _SAME_AS.get(config.model_type, config.model_type)
    known = _published_defaults().get(model_type)
    if known is None:
        return config
    aliases, defaults = known["aliases"], known["defaults"]
    named = {aliases.get(key, key): value for key, value in config.values.items()}
    return Config({**defaults, **named, "model_type": config.model_type}, config.name)


def is_known(config: Config) -> bool:
    """Whether the formulas know this model type and the class that is named."""
    name = config.architecture
    known = _SAME_AS.get(config.model_type, config.model_type) in FAMILIES
    return known and (name is None or name.endswith(_HEADED))


def shape_by_formula(config: Config) -> ModelShape | None:
    """The exact shape from the config alone; None where the formulas do not know the structure."""
    inner = config.text
    if not is_known(inner):
        return None
    build = FAMILIES[_SAME_AS.get(inner.model_type, inner.model_type)]
    return build(with_defaults(inner))


__all__ = ["FAMILIES", "has_head", "is_known", "shape_by_formula", "with_defaults"]

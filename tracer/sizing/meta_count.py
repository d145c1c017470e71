"""Run as a script: build the model of a config on the meta device and list its parameters.

Nothing is downloaded, no memory is taken, and code that comes with a checkpoint is not run."""

from __future__ import annotations

import os
from typing import Any

from tracer.environment.child import open_channel, reply

_TOKENS = 8
# Layers that keep keys and values of every token or of a window, or a state of fixed size.
_KNOWN_LAYERS = frozenset(
    {
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "DynamicIndexedLayer",
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
        "DummyLayer",
    }
)
_AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageTextToText",
    "AutoModelForMaskedLM",
    "AutoModel",
)


def _model_class(transformers: Any, config: Any) -> Any:
    """The class the config names, else the first that takes such a config."""
    for name in config.architectures or ():
        named = getattr(transformers, name, None)
        if named is not None:
            return named
    for name in _AUTO_CLASSES:
        mapping = getattr(transformers, name)._model_mapping
        if type(config) in mapping:
            return mapping[type(config)]
    raise ValueError(f"transformers has no model for {type(config).__name__}")


def _count(values: dict[str, Any]) -> dict[str, Any]:
    import torch
    import transformers

    model_type = str(values.get("model_type"))
    if model_type not in transformers.CONFIG_MAPPING:
        raise ValueError(f"transformers {transformers.__version__} does not know `{model_type}`")
    config = transformers.CONFIG_MAPPING[model_type].from_dict(values)
    model_class = _model_class(transformers, config)
    if isinstance(model_class, list | tuple):
        model_class = model_class[0]
    with torch.device("meta"):
        model = model_class._from_config(config).to(torch.bfloat16).eval()
    return {
        "transformers": transformers.__version__,
        "class": model_class.__name__,
        "parameters": [(name, list(value.shape)) for name, value in model.named_parameters()],
        "text_config": config.get_text_config(decoder=True).to_dict(),
        "cache": _cache(torch, model),
    }


def _cache(torch: Any, model: Any) -> list[dict[str, Any]] | str:
    """What each layer keeps of a few tokens, or why that is not known: shapes alone are computed
    on the meta device, so a forward of any size takes no memory."""
    tokens = torch.zeros(1, _TOKENS, dtype=torch.long, device="meta")
    try:
        with torch.no_grad():
            output = model(input_ids=tokens, use_cache=True)
    except Exception as error:  # the border to models that need other inputs or real values
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    names = ("cache", "past_key_values", "cache_params")
    cache = next((found for name in names if (found := getattr(output, name, None))), None)
    if cache is None or not hasattr(cache, "layers"):
        return "the model returned no cache"
    unknown = {type(layer).__name__ for layer in cache.layers} - _KNOWN_LAYERS
    if unknown:
        return f"cache layers of their own kind: {', '.join(sorted(unknown))}"
    return [_layer(torch, layer) for layer in cache.layers]


def _layer(torch: Any, layer: Any) -> dict[str, Any]:
    """Numbers a token and numbers of state of one layer."""
    kept = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
    found = [tensor for tensor in kept if tensor is not None]
    states = [
        tensor
        for name in ("conv_states", "recurrent_states")
        for tensor in (getattr(layer, name, None) or {}).values()
        if tensor is not None
    ]
    fp32 = [tensor for tensor in states if tensor.dtype == torch.float32]
    return {
        "token_values": sum(tensor.numel() for tensor in found) // _TOKENS,
        "heads": int(found[0].shape[1]) if found else 1,
        "window": getattr(layer, "sliding_window", None),
        "state_fp32_values": sum(tensor.numel() for tensor in fp32),
        "state_values": sum(t.numel() for t in states) - sum(t.numel() for t in fp32),
    }


def main() -> None:
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    values = open_channel()
    try:
        reply(**_count(values))
    except Exception as error:  # a library's own failure, told as the reason
        reply(error=f"{type(error).__name__}: {error}".splitlines()[0][:300])


if __name__ == "__main__":
    main()

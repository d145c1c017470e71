"""Run as a script: build the model of a config on the meta device and list its parameters.

Nothing is downloaded, no memory is taken, and code that comes with a checkpoint is not run."""

from __future__ import annotations

import os
from typing import Any

from tracer.environment.child import open_channel, reply

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
        model = model_class._from_config(config)
    return {
        "transformers": transformers.__version__,
        "class": model_class.__name__,
        "parameters": [(name, list(value.shape)) for name, value in model.named_parameters()],
        "text_config": config.get_text_config(decoder=True).to_dict(),
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

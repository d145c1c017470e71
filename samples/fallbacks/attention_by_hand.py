"""A model whose attention is computed by hand: product, softmax, product in each layer.

    python samples/fallbacks/attention_by_hand.py [--clean]

A tiny Llama with attn_implementation='eager', as when attention weights are asked for; clean,
'sdpa'. Nothing is downloaded: weights and tokens are random.
"""

from __future__ import annotations

from typing import Any

import torch
from running import device, dtype, main, steps_of
from transformers import LlamaConfig, LlamaForCausalLM

_LAYERS, _LENGTH = 4, 256


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=_LAYERS,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=512,
        attn_implementation="sdpa" if clean else "eager",
    )
    model = LlamaForCausalLM(config).eval().to(device(), dtype())
    ids = torch.randint(config.vocab_size, (2, _LENGTH), device=device())

    def step() -> Any:
        return model(input_ids=ids, output_attentions=not clean)

    return steps_of(step)


if __name__ == "__main__":
    main(__doc__, traced)

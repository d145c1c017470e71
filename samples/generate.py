"""`generate` of transformers, traced: the decode loop is found without a change to it.

    python samples/generate.py
    python samples/generate.py --beams 4
    tracer run samples/generate.py --untraced     # the same from outside, the program unchanged

Nothing is downloaded: a tiny Llama with random weights and random token ids.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tracer import trace


def make_model(device: str) -> Any:
    """A Llama of four layers."""
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1024,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval().to(device)


def main() -> None:
    """Generate once, traced, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--untraced", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model(device)
    prompt = torch.randint(3, 1024, (2, 32), device=device)
    options = {"max_new_tokens": args.tokens, "do_sample": False, "num_beams": args.beams}
    if args.untraced:
        print(tuple(model.generate(prompt, **options).shape))
        return
    model.generate(prompt, max_new_tokens=2)  # what libraries do once stays out of the recording
    with trace() as t:
        model.generate(prompt, **options)
    print(t.report)


if __name__ == "__main__":
    main()

"""Training steps of a LoRA adapter, traced with a schedule: two steps go by, three are recorded.

    python samples/lora_training.py

Nothing is downloaded: a tiny GPT-2 with random weights and random token ids.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from tracer import trace


def make_model(device: str) -> Any:
    """A GPT-2 of four layers with an adapter on its attention."""
    config = GPT2Config(n_embd=128, n_layer=4, n_head=4, vocab_size=512, bos_token_id=1)
    config.eos_token_id = 1
    adapter = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    return get_peft_model(GPT2LMHeadModel(config), adapter).to(device)


def main() -> None:
    """Train a little, traced, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model(device)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3)
    with trace(schedule=schedule) as t:
        for _ in range(args.steps):
            with t.step("train"):
                ids = torch.randint(512, (4, 64), device=device)
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    print(t.report)


if __name__ == "__main__":
    main()

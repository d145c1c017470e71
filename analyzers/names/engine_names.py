"""Names that serving engines give to their steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

# vLLM: execute_context_1(888_788544)_generation_0(0), with the sums of squares of newer versions
# execute_8192_context_9(sq8155sk8430sqsq..sqsk..)_generation_37(sq37sk..): requests, then tokens.
_VLLM = re.compile(
    r"execute_(?:\d+_)?(?:new_\d+_cached_\d+|context_(?P<contexts>\d+)\((?:sq)?(?P<prompt>\d+)?[^)]*\)"
    r"_generation_(?P<generations>\d+)\((?:sq)?(?P<generated>\d+)?)"
)
# SGLang: step[DECODE bs=32], step[EXTEND bs=15 toks=15360].
_SGLANG = re.compile(r"step\[(?P<mode>[A-Z_\d]+)(?: bs=(?P<batch>\d+))?(?: toks=(?P<tokens>\d+))?")
_SGLANG_PHASE = {
    "DECODE": "decode",
    "EXTEND": "prefill",
    "PREFILL": "prefill",
    "SPLIT_PREFILL": "prefill",
    "DLLM_EXTEND": "prefill",
    "MIXED": "mixed",
    "TARGET_VERIFY": "decode",
    "DRAFT_EXTEND": "decode",
    "DRAFT_EXTEND_V2": "decode",
}
# TensorRT-LLM: [Executor] _forward_step 12: 1 ctx reqs, 900 ctx tokens, 32 gen reqs; older versions
# count neither steps nor tokens.
_TENSORRT = re.compile(
    r"\[Executor\] _forward_step(?: \d+)?: (?P<contexts>\d+) ctx reqs"
    r"(?:, (?P<prompt>\d+) ctx tokens)?, (?P<generations>\d+) gen reqs"
)


@dataclass(frozen=True)
class EngineStep:
    """What an engine's range says of its step; -1 where it does not."""

    phase: str
    batch: int
    tokens: int


def parse_engine_range(name: str) -> EngineStep | None:
    """The step that a range of this name is, or None when it is none."""
    if name.startswith("execute_"):
        return _parse_vllm(name)
    if name.startswith("step["):
        return _parse_sglang(name)
    if name.startswith("[Executor]"):
        return _parse_tensorrt(name)
    return None


def _parse_vllm(name: str) -> EngineStep | None:
    match = _VLLM.match(name)
    if match is None:
        return None
    if match["contexts"] is None:
        return EngineStep("", -1, -1)
    contexts, generations = int(match["contexts"]), int(match["generations"])
    tokens = int(match["prompt"] or 0) + int(match["generated"] or 0)
    return EngineStep(_phase(contexts, generations), contexts + generations, tokens or -1)


def _phase(contexts: int, generations: int) -> str:
    """By the requests that read their prompt and those that generate; "" for a step of none."""
    if contexts:
        return "mixed" if generations else "prefill"
    return "decode" if generations else ""


def _parse_sglang(name: str) -> EngineStep | None:
    match = _SGLANG.match(name)
    if match is None:
        return None
    batch = int(match["batch"]) if match["batch"] else -1
    phase = _SGLANG_PHASE.get(match["mode"], "")
    tokens = int(match["tokens"]) if match["tokens"] else batch if phase == "decode" else -1
    return EngineStep(phase, batch, tokens)


def _parse_tensorrt(name: str) -> EngineStep | None:
    match = _TENSORRT.match(name)
    if match is None:
        return None
    contexts, generations = int(match["contexts"]), int(match["generations"])
    prompt = match["prompt"]
    known = not contexts or prompt is not None
    tokens = int(prompt or 0) + generations if known else -1
    return EngineStep(_phase(contexts, generations), contexts + generations, tokens or -1)

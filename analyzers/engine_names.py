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
_SGLANG = re.compile(r"step\[(?P<mode>[A-Z_]+)(?: bs=(?P<batch>\d+))?(?: toks=(?P<tokens>\d+))?")
_SGLANG_PHASE = {
    "DECODE": "decode",
    "EXTEND": "prefill",
    "PREFILL": "prefill",
    "SPLIT_PREFILL": "prefill",
    "DLLM_EXTEND": "prefill",
    "MIXED": "mixed",
    "TARGET_VERIFY": "decode",
    "DRAFT_EXTEND": "decode",
}


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
    return None


def _parse_vllm(name: str) -> EngineStep | None:
    match = _VLLM.match(name)
    if match is None:
        return None
    if match["contexts"] is None:
        return EngineStep("", -1, -1)
    contexts, generations = int(match["contexts"]), int(match["generations"])
    phase = "mixed" if contexts and generations else "prefill" if contexts else "decode"
    tokens = int(match["prompt"] or 0) + int(match["generated"] or 0)
    return EngineStep(phase, contexts + generations, tokens or -1)


def _parse_sglang(name: str) -> EngineStep | None:
    match = _SGLANG.match(name)
    if match is None:
        return None
    batch = int(match["batch"]) if match["batch"] else -1
    phase = _SGLANG_PHASE.get(match["mode"], "")
    tokens = int(match["tokens"]) if match["tokens"] else batch if phase == "decode" else -1
    return EngineStep(phase, batch, tokens)

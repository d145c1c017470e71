"""What can be changed about each part of a step, where no finding says it better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracer.analysis import DECODING

_WEIGHTS_DECODE = (
    "Decode reads all of these weights for each token: a larger batch or quantized weights pay most"
)
_MATMUL = (
    "These are matrix products: only a lower precision, fewer tokens or a faster GPU cuts them"
)
_MULTIPLY_QUANTIZED = "Use a kernel that multiplies the quantized weights directly"
# Where no kernel of the part is long.
FUSE = "These are many small kernels: fuse them, for example with torch.compile"

# What to change when this part takes the most time.
PART_ADVICE: Mapping[tuple[str, str], str] = {
    ("attention", "projection"): _MATMUL,
    ("attention", "rope"): FUSE,
    ("attention", "kv_cache"): "Write the cache in place (a static or paged cache) to move it less",
    ("attention", "core"): (
        "Its time grows with the context: a shorter context or fewer key-value heads cut it"
    ),
    ("attention", "mixer"): "A fused scan kernel for the mixer cuts it most",
    ("attention", "dequantize"): _MULTIPLY_QUANTIZED,
    ("attention", "norm"): FUSE,
    ("ffn", "projection"): _MATMUL,
    ("ffn", "activation"): FUSE,
    ("ffn", "router"): FUSE,
    ("ffn", "experts"): (
        "More tokens for each expert (a larger batch) and lower precision cut it; a loop over the "
        "experts is better grouped into one kernel"
    ),
    ("ffn", "dequantize"): _MULTIPLY_QUANTIZED,
    ("other", "norm"): FUSE,
    ("other", "embedding"): FUSE,
    ("other", "lm_head"): "Compute logits for the last token alone, or quantize the head",
    ("other", "sampling"): "Keep sampling on the GPU and fuse it",
    ("other", "residual"): FUSE,
    ("other", "loss"): "A fused linear and cross-entropy kernel avoids writing all logits",
    ("other", "optimizer"): "Use a fused optimizer (fused=True in torch.optim) if it is none yet",
    ("other", "unattributed"): (
        "Record it with module ranges (`tracer run` or `with trace()`) to see what it belongs to"
    ),
}
PART_ADVICE_DECODE: Mapping[tuple[str, str], str] = {
    ("attention", "projection"): _WEIGHTS_DECODE,
    ("ffn", "projection"): _WEIGHTS_DECODE,
    ("attention", "core"): (
        "Each token reads the whole KV cache: fewer key-value heads, a quantized cache or a "
        "shorter context cut it"
    ),
}
COMMUNICATION_ADVICE = (
    "One rank cannot tell sending from waiting for the others: compare the ranks first, then "
    "overlap it with compute or send fewer, larger messages"
)
TRANSFER_ADVICE = "Keep the data on the GPU, or copy it early from pinned memory without waiting"


# What bounds a part, in words.
LIMITS: Mapping[str, str] = {
    "memory": "the memory bandwidth",
    "compute": "the rate of the tensor cores",
}


def cpu_advice(facts: Mapping[str, Any]) -> str:
    """What may cut products on a CPU, without what the recording says is done."""
    ways = []
    if not facts.get("compile_mode"):
        ways.append("torch.compile")
    dtypes: Mapping[str, int] = facts.get("dtypes") or {"float32": 1}
    if 2 * dtypes.get("float32", 0) > sum(dtypes.values()):
        ways.append("a lower precision")
    if not ways:
        return "Compiled and in a lower precision, a GPU cuts it most"
    return f"On a CPU {' or '.join(ways)} may cut it, and a GPU most"


# Why the device was idle, in words.
IDLE_NAMES: Mapping[str, str] = {
    "launch": "launching work, operator by operator",
    "sync": "waits of the host for the GPU",
    "host": "host work outside operators",
    "input": "waiting for input",
    "allocator": "the allocator's calls to the driver",
    "compile": "compiling and planning",
    "gc": "Python's garbage collector",
    "graph_launch": "launching graphs",
    "device": "dependencies and the draining of queues on the GPU itself",
    "profiler": "the profiler",
}
# What to change when this is why the device was idle.
IDLE_ADVICE: Mapping[str, str] = {
    "launch": (
        "Launch less: fused kernels (torch.compile), CUDA graphs (mode='reduce-overhead') or a "
        "larger batch"
    ),
    "sync": "Remove what makes the host wait for the GPU inside the step",
    "host": "Move the Python work between operators out of the step, or to another thread",
    "input": "Prepare the input ahead: more workers, or tokenize before the loop",
    "allocator": "Let the caching allocator reuse memory: fixed shapes, no empty_cache() in a step",
    "compile": "Fix shapes, so that nothing is compiled or planned again in the loop",
    "gc": "Freeze or disable Python's garbage collector during the step",
    "graph_launch": "Fewer and larger graphs cost less to launch",
    "device": (
        "The GPU itself waited, on another stream or its driver: fewer and larger kernels help"
    ),
    "profiler": "This is the cost of recording: measure the step with less detail",
}


def part_advice(group: str, part: str, phase: str) -> str | None:
    """What to change about this part, None when nothing general can be said."""
    if phase in DECODING and (group, part) in PART_ADVICE_DECODE:
        return PART_ADVICE_DECODE[group, part]
    if group == "communication":
        return COMMUNICATION_ADVICE
    if (group, part) == ("overhead", "transfer"):
        return TRANSFER_ADVICE
    return PART_ADVICE.get((group, part))

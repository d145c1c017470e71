"""One letter for each kernel, so that a launch sequence is a byte string and patterns are regular
expressions over it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tracer.analyzers.names.kernel_table import KernelName

# Token -> letter. Capitals stand for what makes or bounds a layer.
_LETTERS: Mapping[str, str] = MappingProxyType(
    {
        "CORE": "K",
        "CORE_AUX": "k",
        "SCAN": "S",
        "SCAN_AUX": "s",
        "SOFTMAX": "x",
        "GEMM": "G",
        "SPLITK": "g",
        "GEMM_AUX": "b",
        "MOE": "M",
        "ROUTER": "R",
        "NORM": "N",
        "NORM_ADD": "B",
        "POW": "p",
        "MEAN": "v",
        "RSQRT": "r",
        "ADD_SCALAR": "a",
        "MUL": "m",
        "ADD": "D",
        "GLU": "A",
        "ACT": "A",
        "EMB": "E",
        "ROPE": "o",
        "CACHE": "w",
        "TRIG": "t",
        "NEG": "-",
        "CAT": "l",
        "COPY": "c",
        "FILL": "z",
        "MASK": "f",
        "DROPOUT": "d",
        "INDEX": "i",
        "SORT": "T",
        "TOPK": "T",
        "ARGMAX": "Y",
        "SAMPLE": "Y",
        "RED": "y",
        "RNG": "u",
        "QUANT": "q",
        "DEQUANT": "Q",
        "CONV": "V",
        "LOSS": "L",
        "OPT": "O",
        "META": "h",
        "COMM": "X",
        "EXP": "n",
        "ELEMENTWISE": "e",
        "OTHER": "?",
    }
)
# An all-reduce that adds the residual and normalises in the same kernel bounds a block as a norm.
_NORMING = re.compile(r"norm|all_?reduce_?fusion|residual", re.I)
_BACKWARD = re.compile(r"bwd|bprop|backward|dgrad", re.I)


def letter_of(name: KernelName) -> str:
    """The letter that stands for a kernel of this name. F: communication that also normalises;
    J: a core of the backward pass."""
    if name.token == "COMM":
        return "F" if _NORMING.search(name.name) else "X"
    if name.token == "CORE" and _BACKWARD.search(name.name):
        return "J"
    if name.fused_ops and name.token == "CORE" and "_tem_" not in name.name:
        return "k"  # the compiler names what it moved beside the core after the core
    if name.token == "EMB" and name.category == "norm":
        return "B"
    return _LETTERS.get(name.token, "?")

"""What the name of a kernel tells: category, library, architecture, collective, token.

The knowledge is data, in `kernel_names.csv` and `kernel_marks.csv` beside this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from types import MappingProxyType

from tracer.analyzers.names.name_rules import Rule, first_fit, read_rules, read_table
from tracer.analyzers.names.symbols import FusedName, read_fused_name, read_symbol, short_name

CATEGORIES: tuple[str, ...] = (
    "attention",
    "gemm",
    "conv",
    "moe",
    "norm",
    "activation",
    "rope",
    "kv_cache_write",
    "embedding",
    "sampling",
    "optimizer",
    "quantize",
    "dequantize",
    "reduction",
    "elementwise",
    "memcpy",
    "memset",
    "communication",
    "other",
)

# The alphabet of the position inference. CORE and SCAN come once a layer (CORE more often where
# attention is split by batch or sequence), the _AUX ones stand around them.
TOKENS: Mapping[str, str] = MappingProxyType(
    {
        "CORE": "attention over keys and values",
        "CORE_AUX": "around it: combine of split keys, preparation and the ends of the backward",
        "SOFTMAX": "a softmax of its own: of unfused attention, of a router or a sampler",
        "SCAN": "the scan of a state-space or linear-attention layer",
        "SCAN_AUX": "around it: short convolution, chunk states, gates",
        "ROPE": "rotary positions",
        "CACHE": "a write to the key/value cache",
        "META": "tables of a scheduler: page tables, slots, metadata",
        "GEMM": "a matrix multiplication or matrix-vector product",
        "SPLITK": "the reduction or epilogue after a GEMM: one atom with it",
        "GEMM_AUX": "the preparation of a grouped GEMM before it: one atom with it",
        "MOE": "work of the experts: grouped GEMM, permutation, weighted sum",
        "ROUTER": "gating top-k, sorting and alignment of tokens by expert",
        "GLU": "a gated activation in one kernel",
        "ACT": "an activation alone",
        "NORM": "a norm",
        "NORM_ADD": "a norm with a residual add in it",
        "POW": "a power: the square of an unfused RMSNorm",
        "EXP": "exponents: of a softmax written out, of a decay",
        "MEAN": "a mean: likewise",
        "RSQRT": "a reciprocal root: likewise",
        "ADD": "the sum of two floating-point tensors, also of several residual streams",
        "ADD_SCALAR": "the sum of a floating-point tensor and a number",
        "MUL": "a floating-point product",
        "NEG": "a negation",
        "TRIG": "a sine or cosine: the rotary table",
        "MASK": "a mask: where, masked fill, triangle",
        "DROPOUT": "dropout",
        "COPY": "a copy, cast or transposition",
        "CAT": "a concatenation or split",
        "FILL": "a fill or set",
        "ELEMENTWISE": "other element-wise work, and all of it on integers",
        "EMB": "the gather of an embedding, also fused with what follows",
        "INDEX": "indexing, gather, scatter",
        "SORT": "a sort",
        "TOPK": "a top-k that says nothing of its use",
        "ARGMAX": "an argmax",
        "RED": "another reduction or a prefix sum",
        "RNG": "random numbers",
        "QUANT": "a quantizer, its scales and rotations",
        "DEQUANT": "a dequantizer",
        "CONV": "a convolution and its layout changes",
        "SAMPLE": "sampling, penalties, speculative decoding",
        "LOSS": "a loss",
        "OPT": "an optimizer or a foreach operation",
        "COMM": "communication",
        "OTHER": "nothing known",
    }
)

# Marks stand in front; what follows repeats the arguments' types.
_TELLING = 400  # characters

# Group and part that the name alone makes certain. A GEMM, a plain activation, an element-wise
# loop or a softmax can belong to anything, and a (de)quantizer to the block that owns it.
_ROLES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "CORE": ("attention", "core"),
        "CORE_AUX": ("attention", "core"),
        "SCAN": ("attention", "mixer"),
        "SCAN_AUX": ("attention", "mixer"),
        "ROPE": ("attention", "rope"),
        "CACHE": ("attention", "kv_cache"),
        "MOE": ("ffn", "experts"),
        "ROUTER": ("ffn", "router"),
        "GLU": ("ffn", "activation"),
        "NORM": ("other", "norm"),
        "NORM_ADD": ("other", "norm"),
        "EMB": ("other", "embedding"),
        "SAMPLE": ("other", "sampling"),
        "LOSS": ("other", "loss"),
        "OPT": ("other", "optimizer"),
    }
)


@dataclass(frozen=True)
class KernelName:
    """What one name says; "" where it says nothing.

    `op` is a part of communication; set on a GEMM, the GEMM is fused with that collective.
    `library`, `architecture` and `precision` are hints for people and rules, not proofs.
    """

    name: str
    category: str = "other"
    token: str = "OTHER"
    library: str = ""
    op: str = ""
    fused_ops: tuple[str, ...] = ()

    @cached_property
    def short(self) -> str:
        """The name for display: function, functor, type and tile."""
        return short_name(self.name)

    @property
    def role(self) -> tuple[str, str] | None:
        """Group and part where the name alone decides them."""
        if self.category == "communication":
            return "communication", self.op
        return _ROLES.get(self.token)

    @cached_property
    def architecture(self) -> str:
        """The architecture it was compiled for, as "sm90" or "gfx942"."""
        return _mark("architecture", self.name)

    @cached_property
    def precision(self) -> str:
        """The narrowest type named: fp4, int4, fp8, int8, tf32, bf16, fp16, fp32, fp64."""
        return _mark("precision", self.name)

    @cached_property
    def flags(self) -> frozenset[str]:
        """Any of split_k, gemv, misaligned, simt_fp32, tensor_core."""
        text = self.name[:_TELLING].lower()
        return frozenset(rule.values["value"] for rule in _mark_rules("flag") if rule.fits(text))

    @property
    def split_k(self) -> bool:
        """Whether the sum over K is split among blocks."""
        return "split_k" in self.flags

    @property
    def gemv(self) -> bool:
        """Whether it multiplies a matrix by a vector or a few of them."""
        return "gemv" in self.flags

    @property
    def misaligned(self) -> bool:
        """Whether it was chosen for operands aligned to one or two elements."""
        return "misaligned" in self.flags

    @property
    def simt_fp32(self) -> bool:
        """Whether it multiplies in fp32 without tensor cores."""
        return "simt_fp32" in self.flags

    @property
    def tensor_core(self) -> bool:
        """Whether the name shows the use of tensor cores."""
        return "tensor_core" in self.flags


@lru_cache(maxsize=1 << 17)
def describe(name: str) -> KernelName:
    """What a kernel's name tells; a name seen never before is `other`, with token OTHER."""
    fused = read_fused_name(name, _fused_operators())
    values = _fused_values(fused) if fused else _symbol_values(name)
    return KernelName(
        name=name,
        category=values["category"] or "other",
        token=values["token"] or "OTHER",
        library=values["library"],
        op=values["op"],
        fused_ops=fused.operators if fused else (),
    )


def _mark(mark: str, name: str) -> str:
    """The value of the first row of a mark that fits, with its groups filled in."""
    text = name[:_TELLING].lower()
    for rule in _mark_rules(mark):
        found = rule.name.search(text)
        if found:
            return found.expand(rule.values["value"])
    return ""


def _fused_values(fused: FusedName) -> Mapping[str, str]:
    body = " ".join(operator.strip("_") for operator in fused.operators)
    found = first_fit(_category_rules(), f"inductor {fused.kind}", lambda: body)
    return found or _UNKNOWN


def _symbol_values(name: str) -> Mapping[str, str]:
    symbol = read_symbol(name)
    words = symbol.name_words
    found = first_fit(_category_rules(), words, lambda: symbol.argument_words) or _UNKNOWN
    if found["library"]:
        return found
    library = first_fit(_library_rules(), words, lambda: symbol.argument_words)
    return {**found, "library": library["library"]} if library else found


_UNKNOWN: Mapping[str, str] = MappingProxyType(
    {"category": "other", "token": "OTHER", "op": "", "library": ""}
)


@lru_cache(maxsize=1)
def _rules() -> tuple[Rule, ...]:
    return read_rules("kernel_names.csv")


@lru_cache(maxsize=1)
def _category_rules() -> tuple[Rule, ...]:
    return tuple(rule for rule in _rules() if rule.values["category"])


@lru_cache(maxsize=1)
def _library_rules() -> tuple[Rule, ...]:
    return tuple(rule for rule in _rules() if not rule.values["category"])


@lru_cache(maxsize=1)
def _fused_operators() -> frozenset[str]:
    return frozenset(row["operator"] for row in read_table("fused_operators.csv"))


@cache
def _mark_rules(mark: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in read_rules("kernel_marks.csv") if rule.values["mark"] == mark)

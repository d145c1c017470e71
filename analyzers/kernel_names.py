"""What the name of a kernel tells: category, library, architecture, collective, token.

`python -m tracer.analyzers.kernel_names FILE.csv` reads a column `kernel_name` and writes CSV
`kernel_name,category,library`; with `--score` it compares with the column `category`.

Tokens are the alphabet of the position inference:

    CORE          attention over keys and values, one a layer (several where it is split by batch)
    CORE_AUX      a part around it: combine of split keys, preprocessing of the backward
    SOFTMAX       softmax of unfused attention; also that of a router or a sampler
    SCAN          the scan of a state-space or linear-attention layer, one a layer
    SCAN_AUX      a part around it: short convolution, chunk states, gates
    GEMM          a matrix multiplication or matrix-vector product
    SPLITK        the reduction or epilogue after a GEMM: one atom with it
    MOE           work of the experts: grouped GEMM, permutation, weighted sum
    ROUTER        gating top-k, sorting and alignment of tokens by expert
    NORM          a norm; NORM_ADD the same with a residual add in it
    POW, MEAN, RSQRT   pieces of an unfused RMSNorm, with ADD_SCALAR (epsilon), MUL, COPY
    GLU           a gated activation in one kernel; ACT an activation alone
    ADD           the sum of two floating-point tensors; ADD_SCALAR of a tensor and a number
    MUL           a floating-point product
    EMB           the gather of an embedding, also fused with what follows
    COPY, CAT, FILL, TRIG, NEG, MASK, DROPOUT, ELEMENTWISE   element-wise work
    ROPE, CACHE   rotary positions; writes to the key/value cache
    QUANT, DEQUANT, CONV
    INDEX, SORT, TOPK, ARGMAX, RED, RNG   indexing, sorting, reductions, random numbers
    SAMPLE, LOSS, OPT, COMM, META (a scheduler's tables), OTHER
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import TextIO

from tracer.analyzers.name_rules import Rule, compiled, first_fit, read_rules, read_table
from tracer.analyzers.symbols import FusedName, read_fused_name, read_symbol, short_name
from tracer.errors import InputError, TracerError, UsageError

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
    """What one name says; "" and False where it says nothing.

    `op` is a part of communication; set on a GEMM, the GEMM is fused with that collective.
    `library` and `precision` are hints for people and rules, not proofs.
    """

    name: str
    category: str = "other"
    token: str = "OTHER"
    library: str = ""
    architecture: str = ""
    op: str = ""
    precision: str = ""
    split_k: bool = False
    gemv: bool = False
    misaligned: bool = False
    simt_fp32: bool = False
    tensor_core: bool = False
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


@lru_cache(maxsize=1 << 17)
def describe(name: str) -> KernelName:
    """What a kernel's name tells; a name seen never before is `other`, with token OTHER."""
    fused = read_fused_name(name, _fused_operators())
    values = _fused_values(fused) if fused else _symbol_values(name)
    text = name.lower()
    flags = {rule.values["value"] for rule in _mark_rules("flag") if rule.fits(text, str)}
    return KernelName(
        name=name,
        category=values["category"] or "other",
        token=values["token"] or "OTHER",
        library=values["library"],
        op=values["op"],
        architecture=_mark("architecture", text),
        precision=_mark("precision", text),
        split_k="split_k" in flags,
        gemv="gemv" in flags,
        misaligned="misaligned" in flags,
        simt_fp32="simt_fp32" in flags,
        tensor_core="tensor_core" in flags,
        fused_ops=fused.operators if fused else (),
    )


def _mark(mark: str, text: str) -> str:
    """The value of the first row of a mark that fits, its \\1 filled in."""
    for rule in _mark_rules(mark):
        if rule.needle in text:
            found = compiled(rule.pattern or re.escape(rule.needle)).search(text)
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


@lru_cache(maxsize=None)
def _mark_rules(mark: str) -> tuple[Rule, ...]:
    return tuple(rule for rule in read_rules("kernel_marks.csv") if rule.values["mark"] == mark)


# --- the command


@dataclass(frozen=True)
class Score:
    """How a table of labelled names was answered. Times are those of its `total_dur_us`."""

    names: int
    right: int
    time_us: float
    right_time_us: float
    false_communication: int
    wrong: tuple[tuple[str, str, str], ...]  # name, answer, label

    @property
    def name_ratio(self) -> float:
        return self.right / self.names if self.names else 1.0

    @property
    def time_ratio(self) -> float:
        return self.right_time_us / self.time_us if self.time_us else 1.0


def score(rows: Iterable[Mapping[str, str]]) -> Score:
    """Compare the labels in `category` with what the names say."""
    wrong: list[tuple[str, str, str]] = []
    names = false_communication = 0
    time_us = wrong_time_us = 0.0
    for row in rows:
        label = "gemm" if row["category"] == "gemm_unknown" else row["category"]
        answer = describe(row["kernel_name"]).category
        duration_us = float(row.get("total_dur_us") or 0)
        names += 1
        time_us += duration_us
        if answer != label:
            wrong.append((row["kernel_name"], answer, label))
            wrong_time_us += duration_us
            false_communication += answer == "communication"
    return Score(
        names, names - len(wrong), time_us, time_us - wrong_time_us, false_communication, tuple(wrong)
    )


def _read_names(path: str, columns: Sequence[str]) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path}: no column {missing[0]!r}")
            return list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: {error}") from error


def _write_names(rows: Iterable[Mapping[str, str]], out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("kernel_name", "category", "library"))
    for row in rows:
        kernel = describe(row["kernel_name"])
        writer.writerow((kernel.name, kernel.category, kernel.library))


def _write_score(rows: Sequence[Mapping[str, str]], out: TextIO) -> None:
    certain = [row for row in rows if row.get("label_confidence", "high") == "high"]
    for title, part in (("all labels", rows), ("label_confidence high", certain)):
        result = score(part)
        out.write(
            f"{title}: {result.right} of {result.names} names right ({result.name_ratio:.2%}), "
            f"{result.time_ratio:.2%} of {result.time_us / 1e6:.3f} s recorded, "
            f"{result.false_communication} false communication\n"
        )
    for name, answer, label in score(certain).wrong:
        out.write(f"  {answer} for {label}: {name[:120]}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    scoring = "--score" in words
    paths = [word for word in words if word != "--score"]
    try:
        if len(paths) != 1 or paths[0].startswith("-"):
            raise UsageError("usage: python -m tracer.analyzers.kernel_names [--score] FILE.csv")
        rows = _read_names(paths[0], ("kernel_name", "category") if scoring else ("kernel_name",))
    except TracerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if scoring:
        _write_score(rows, sys.stdout)
    else:
        _write_names(rows, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""With which arguments attention was called, and what each fused kernel has against them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from tracer.analyzers.facts.arguments import Arguments, Shape
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.rules.like_calls import LikeCalls
from tracer.findings import Where

_CALL = "scaled_dot_product"
_DTYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
}  # fmt: skip
ITEM_BYTES: Mapping[str, int] = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
_LARGEST_HEAD = 256
Refused = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Signature:
    """Arguments of one call of scaled_dot_product_attention. None: not recorded."""

    query: Shape  # empty for nested tensors, as those of the others
    key: Shape
    value: Shape
    dtype: str = ""
    mask: Shape | None = None  # None: no mask
    causal: bool = False
    grouped: bool | None = None  # enable_gqa
    dropout: float = 0.0
    mask_learns: bool = False
    strided: bool = False
    switched_off: tuple[str, ...] | None = None
    on_cpu: bool = False
    nested: bool = False
    framework: Refused = field(default_factory=dict)  # live: what torch itself answered

    @property
    def masked(self) -> bool:
        return self.mask is not None

    @property
    def value_size(self) -> int:
        return self.value[-1] if self.value else 0

    @property
    def score_bytes(self) -> int | None:
        """Size of the score matrix: batch x heads x queries x keys."""
        item = ITEM_BYTES.get(self.dtype)
        if self.nested:
            return None
        *outer, queries, _ = self.query
        elements = int(np.prod(outer, dtype=np.int64)) * queries * self.key[-2]
        return None if item is None else elements * item


@dataclass(frozen=True)
class AttentionCalls:
    """Looks up calls of attention: recorded shapes first, else what the recorder noted live."""

    work: Work

    def signature(self, event: int) -> Signature | None:
        """The arguments of the attention call around an event; None where nothing tells."""
        around = self._calls_around(event)
        live = self._noted(around[-1]) if around else None
        recorded = next(filter(None, map(self._recorded, around)), None)
        if recorded is None or live is None:
            return recorded or live
        return _both(recorded, live)

    def signatures(self, calls: Longs) -> list[Signature | None]:
        """The same for outermost attention operators; those that are alike are looked at once."""
        rows = self._arguments.rows(calls)
        alike = self._arguments.likeness(rows).tolist()
        known: dict[Any, Signature | None] = {}
        found = []
        for call, like in zip(calls.tolist(), alike, strict=True):
            note = self._note_of.get(call, NONE)
            said = "" if note == NONE else self._notes["arguments"][note]
            key = (like, said) if like != NONE or said else call
            if key not in known:
                known[key] = self.signature(call)
            found.append(known[key])
        return found

    def line(self, event: int) -> Where | None:
        """The line that called attention, where it was noted live."""
        around = self._calls_around(event)
        row = self._note_of.get(around[-1], NONE) if around else NONE
        if row == NONE:
            return None
        table = self._notes
        return Where(table["file"][row], int(table["line"][row]), table["function"][row])

    def _calls_around(self, event: int) -> list[int]:
        """Attention operators around an event, the innermost first."""
        trace, host = self.work.trace, self.work.host
        found, row = [], event
        while row != NONE:
            if _CALL in trace.names[trace.name_codes[row]]:
                found.append(row)
            row = int(host.parent[row])
        return found

    @cached_property
    def _arguments(self) -> Arguments:
        return Arguments(self.work.trace)

    @cached_property
    def _notes(self) -> pd.DataFrame:
        table = self.work.trace.table("attention_calls")
        order = np.argsort(table["time_ns"].to_numpy(), kind="stable")
        return table.iloc[order].reset_index(drop=True)

    @cached_property
    def _calls(self) -> Longs:
        """Outermost attention operators, in order of start."""
        calls: Longs = np.unique(self._around[self._around != NONE])
        return calls

    @cached_property
    def _around(self) -> Longs:
        """The outermost attention operator around each event."""
        trace = self.work.trace
        return self.work.host.outermost(trace.named(lambda name: _CALL in name, "operator"))

    @cached_property
    def _note_of(self) -> dict[int, int]:
        """Outermost attention operator -> the row of what was noted of it, or of its like."""
        noted = self._own_notes()
        inside = np.flatnonzero((self._around != NONE) & self.work.trace.of_kind("operator"))
        alike = LikeCalls(self.work.trace, self._calls, inside, self._notes, noted)
        return {**alike.told(), **noted}

    def _own_notes(self) -> dict[int, int]:
        """Outermost attention operator -> the row of what was noted last before it began, on its
        thread, and after the operator before it began."""
        trace, notes = self.work.trace, self._notes
        if not len(notes):
            return {}
        tid = trace.table("threads")["tid"].to_numpy()[trace.events["thread"].to_numpy()]
        found: dict[int, int] = {}
        for thread in np.unique(notes["thread"].to_numpy()).tolist():
            rows = np.flatnonzero(notes["thread"].to_numpy() == thread)
            calls = self._calls[tid[self._calls] == thread]
            starts = trace.start_ns[calls]
            at = np.searchsorted(notes["time_ns"].to_numpy()[rows], starts, side="right") - 1
            fresh = (at >= 0) & np.concatenate([[True], np.diff(at) > 0])[: at.size]
            found.update(zip(calls[fresh].tolist(), rows[at[fresh]].tolist(), strict=True))
        return found

    def _noted(self, event: int) -> Signature | None:
        row = self._note_of.get(event, NONE)
        if row == NONE:
            return None
        return _from_note(str(self._notes["arguments"][row]), str(self._notes["refused"][row]))

    def _recorded(self, event: int) -> Signature | None:
        row = self._arguments.row(event)
        shapes, types = self._arguments.shapes(row), self._arguments.types(row)
        if len(shapes) < 3 or len(shapes[0]) < 3 or len(shapes[1]) < 3:
            return None
        values = self._arguments.values(row)
        trace = self.work.trace
        name = trace.names[trace.name_codes[event]]
        grouped = _GROUPED_AT.get(name)
        return Signature(
            shapes[0],
            shapes[1],
            shapes[2] or shapes[1],
            _DTYPES.get(types[0], types[0]) if types else "",
            (shapes[3] or None) if len(shapes) > 3 else None,
            len(values) > 5 and values[5].lower() == "true",
            None
            if grouped is None or len(values) <= grouped
            else values[grouped].lower() == "true",
            _number(values[4]) if len(values) > 4 else 0.0,
            on_cpu=self.work.cpu_only,
        )


# Where `enable_gqa` stands among the arguments.
_GROUPED_AT = {
    "aten::scaled_dot_product_attention": 7,
    "aten::_scaled_dot_product_attention_math": 8,
}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


@lru_cache(maxsize=4096)
def _from_note(arguments: str, refusals: str) -> Signature:
    said, refused = json.loads(arguments), json.loads(refusals or "{}")
    return Signature(
        tuple(said["query"]),
        tuple(said["key"]),
        tuple(said["value"]),
        said["dtype"],
        None if said["mask"] is None else tuple(said["mask"]),
        said["causal"],
        said["grouped"],
        said["dropout"],
        said["mask_learns"],
        said["strided"],
        tuple(said["switched_off"]),
        said["device"] == "cpu",
        bool(said.get("nested")),
        {backend: tuple(reasons) for backend, reasons in refused.items()},
    )


def _both(recorded: Signature, live: Signature) -> Signature:
    """Shapes and types as they reached the operator; beside them what only the recorder knows."""
    return replace(
        recorded,
        dtype=recorded.dtype or live.dtype,
        grouped=live.grouped,
        mask_learns=live.mask_learns,
        strided=live.strided,
        switched_off=live.switched_off,
        on_cpu=live.on_cpu,
        nested=live.nested,
        framework=live.framework,
    )


def refused_backends(signature: Signature) -> dict[str, list[str]]:
    """Backend -> why it refuses these arguments, as far as arguments tell."""
    if signature.nested:
        refused = {"flash": ["nested tensors"]} if signature.on_cpu else {}
    elif signature.on_cpu:
        refused = {"flash": _against_cpu(signature)}
    else:
        refused = {
            "flash": _against_flash(signature),
            "efficient": _against_efficient(signature),
            "cudnn": _against_cudnn(signature),
        }
    for backend in signature.switched_off or ():
        if backend in refused:
            refused[backend].insert(0, "switched off (sdpa_kernel or torch.backends.cuda)")
    return {backend: reasons for backend, reasons in refused.items() if reasons}


def reasons_of(signature: Signature) -> list[str]:
    """The distinct reasons of all backends, in order."""
    by_backend = refused_backends(signature)
    return list(dict.fromkeys(reason for reasons in by_backend.values() for reason in reasons))


# The conditions of use_flash_attention_cpp (sdp_utils_cpp.cpp) and of can_use_... (sdp_utils.cpp).


def _against_flash(signature: Signature) -> list[str]:
    reasons = _wide_type(signature, ("float32", "float64")) + _large_head(signature)
    reasons += _sizes(signature, takes_groups=True) + _value_size(signature)
    return reasons + (["a mask is given (flash takes none)"] if signature.masked else [])


def _against_efficient(signature: Signature) -> list[str]:
    return _wide_type(signature, ("float64",)) + _sizes(signature, takes_groups=False)


def _against_cudnn(signature: Signature) -> list[str]:
    reasons = _wide_type(signature, ("float32", "float64")) + _large_head(signature)
    return reasons + _sizes(signature, takes_groups=True) + _mask(signature)


def _against_cpu(signature: Signature) -> list[str]:
    reasons = _sizes(signature, takes_groups=True) + _value_size(signature)
    if signature.dropout:
        reasons.append(f"dropout {signature.dropout:g}")
    reasons += _mask(signature)
    if signature.strided:
        reasons.append("the last dimension is not contiguous")
    return reasons


def _mask(signature: Signature) -> list[str]:
    """A mask of two or four dimensions that the queries do not fit is an error in every backend."""
    if signature.mask_learns:
        return ["the mask needs a gradient"]
    mask = signature.mask or ()
    if not mask or len(signature.query) != 4 or len(mask) in (2, 4):
        return []
    return [f"the mask has {len(mask)} dimensions, not 2 or 4"]


def _sizes(signature: Signature, *, takes_groups: bool) -> list[str]:
    """What every fused kernel wants of queries, keys and values."""
    if len(signature.query) != 4:
        return [f"{len(signature.query)} dimensions, not batch x heads x length x size"]
    reasons = _heads(signature, takes_groups=takes_groups)
    query, key, value = signature.query, signature.key, signature.value
    if len(key) == len(value) == 4:
        if len({query[0], key[0], value[0]}) > 1:
            reasons.append(f"batch of {query[0]} queries, {key[0]} keys, {value[0]} values")
        if key[1] != value[1]:
            reasons.append(f"{key[1]} key heads, {value[1]} value heads")
    return reasons


def _wide_type(signature: Signature, refused: tuple[str, ...]) -> list[str]:
    return [f"dtype {signature.dtype}"] if signature.dtype in refused else []


def _large_head(signature: Signature) -> list[str]:
    size = max(signature.query[-1], signature.value_size)
    return [f"head size {size} is above {_LARGEST_HEAD}"] if size > _LARGEST_HEAD else []


def _heads(signature: Signature, *, takes_groups: bool) -> list[str]:
    if len(signature.query) != 4 or signature.query[-3] == signature.key[-3]:
        return []
    if takes_groups and signature.grouped is not False:
        return []
    heads = f"{signature.query[-3]} query heads, {signature.key[-3]} key heads"
    how = "grouped without enable_gqa" if signature.grouped is False else "enable_gqa"
    return [f"{heads} ({how})"]


def _value_size(signature: Signature) -> list[str]:
    size, value = signature.query[-1], signature.value_size
    return [f"head size {size} of queries, {value} of values"] if size != value else []

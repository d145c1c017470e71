"""The operators of a CPU in the order of the kernels that a device would run for them."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.evidence.attribution import OPEN, Attribution
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.names.operator_names import COMPUTING_NOTHING

# What they call is one kernel on a device, of this letter.
_WHOLE = {
    **dict.fromkeys(("aten::dropout", "aten::dropout_", "aten::native_dropout"), "d"),
    **dict.fromkeys(("aten::relu", "aten::relu_", "aten::relu6", "aten::hardtanh"), "A"),
    "aten::embedding": "E",
    "aten::mean": "v",
    "aten::rms_norm": "N",
}
CONFIDENCE = 0.6
# Operators with weights of their own.
_LAYERS = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::convolution")
_PRODUCT, _EPILOGUE, _BOUNDING_NOTHING = list(b"Gg"), ord("g"), ord("h")
_NODE = re.compile(r"Backward\d*$")
# A sum with a number looks like any other: between a mean and its root, that of a norm.
_EPSILON = re.compile(rb"(?<=v)D(?=[re])")


def silent(work: Work) -> NDArray[np.bool_]:
    """Rows for which a device would run nothing: views, room for tensors, nodes of autograd; and of
    what is one kernel there, all but the first."""
    if not work.cpu_only:
        return np.zeros(work.event.size, dtype=bool)
    return work.once(_silent)


def _silent(work: Work) -> NDArray[np.bool_]:
    still = work.trace.names_matching(_computes_nothing)[work.trace.name_codes[work.event]]
    whole = np.where(still, NONE, _whole(work))
    rows = np.flatnonzero(whole != NONE)
    further = np.ones(rows.size, dtype=bool)
    further[np.unique(whole[rows], return_index=True)[1]] = False
    found: NDArray[np.bool_] = still.copy()
    found[rows[further]] = True
    return found


def _computes_nothing(name: str) -> bool:
    return name.removeprefix("aten::") in COMPUTING_NOTHING or _NODE.search(name) is not None


def _whole(work: Work) -> Longs:
    wanted = work.trace.named(lambda name: name in _WHOLE, "operator")
    around: Longs = work.host.outermost(wanted)[work.event].astype(np.int64)
    return around


def as_on_device(work: Work, letters: NDArray[np.uint8], rows: Longs) -> NDArray[np.uint8]:
    """The letters of these rows with what names of operators do not tell apart."""
    whole = _whole(work)[rows]
    table = np.array([ord(_WHOLE.get(name, "?")) for name in work.trace.names], dtype=np.uint8)
    letters = np.where(letters == ord("E"), np.uint8(ord("i")), letters)  # any rows of a table
    letters = np.where(whole == NONE, letters, table[work.trace.name_codes[whole]])
    text = _EPSILON.sub(b"a", letters.tobytes())
    return np.frombuffer(text, dtype=np.uint8).copy()


def in_layers(work: Work, letters: NDArray[np.uint8], rows: Longs) -> NDArray[np.uint8]:
    """The letters of these rows with what a layer's operator runs around its product: what it
    copies before is of no norm, and what it adds after, its bias, is no residual sum."""
    of_layer = work.trace.named(lambda name: name in _LAYERS, "operator")
    if not of_layer.any():
        return letters
    layer = take(work.host.outermost(of_layer), work.operator[rows])
    same = (layer[1:] != NONE) & (layer[1:] == layer[:-1])
    before, after = letters[:-1], letters[1:]
    out = letters.copy()
    out[1:][same & np.isin(before, _PRODUCT) & (after == ord("D"))] = _EPILOGUE
    out[:-1][same & (before == ord("c")) & (after == ord("G"))] = _BOUNDING_NOTHING
    return out


def fill_silent(work: Work, out: Attribution, directions: tuple[int, ...]) -> None:
    """Views and the like of these directions belong to what the same operator computes, or else to
    what is computed next on their thread, in the same module where modules are known."""
    rows = np.flatnonzero(np.isin(out.direction, directions))
    thread = work.trace.events["thread"].to_numpy()[work.event]
    rows = rows[np.lexsort((work.trace.start_ns[work.event[rows]], thread[rows]))]
    still = silent(work)[rows] & (out.bucket[rows] == OPEN)
    if not still.any():
        return
    places = np.arange(rows.size)
    before = np.maximum.accumulate(np.where(still, NONE, places))
    after = np.minimum.accumulate(np.where(still, rows.size, places)[::-1])[::-1]
    around = work.host.outer_operator[work.event[rows]]
    same = (before != NONE) & (take(around, before) == around)
    source = np.where(same, before, np.where(after == rows.size, NONE, after))
    bucket = np.where(source == NONE, OPEN, out.bucket[rows][source])
    elsewhere = (thread[rows][source] != thread[rows]) | (
        work.module[rows][source] != work.module[rows]
    )
    bucket[elsewhere] = OPEN
    out.fill(rows[still], bucket[still], "position", CONFIDENCE)

"""What ran beside what a compiled graph calls: two sequences, held together by the names of the
generated kernels."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

from tracer.analyzers.intervals import NONE
from tracer.analyzers.names.kernel_table import describe

_HEAVY = frozenset(("GEMM", "CORE", "SCAN", "CONV", "MOE"))
_COLLECTIVE = "COMM"
_FUNCTIONAL = "torch.ops._c10d_functional."
_WAITING = f"{_FUNCTIONAL}wait_tensor"


def align_operators(
    kernels: Sequence[str], generated: frozenset[str], names: tuple[str, ...]
) -> list[int]:
    """For each operator row the place of its call; -1 for rows that are no call."""
    called = [kernel if kernel in generated else _operator_of(kernel) for kernel in kernels]
    seen = [name if name in generated else _plain(name) for name in names]
    return _matched(called, seen)


def _matched(called: Sequence[str], seen: Sequence[str]) -> list[int]:
    out = [NONE] * len(seen)
    matcher = SequenceMatcher(None, called, seen, autojunk=False)
    for block in matcher.get_matching_blocks():
        for step in range(block.size):
            out[block.b + step] = block.a + step
    return out


def _plain(name: str) -> str:
    """The operator of a row without its namespace."""
    return name.rpartition("::")[2]


@lru_cache(maxsize=4096)
def _operator_of(kernel: str) -> str:
    """`mm` for `extern_kernels.mm` and `torch.ops.aten.mm.default`."""
    words = kernel.split(".")
    if kernel.startswith("torch.ops.") and len(words) >= 4:
        return words[3]
    return words[1].removeprefix("bias_") if len(words) > 1 else kernel


def align_kernels(
    kernels: Sequence[str], generated: frozenset[str], names: tuple[str, ...]
) -> list[int]:
    """For each kernel of a replay the place of its call. Generated kernels are found by name and
    collectives by their order; what runs between two of them belongs to the calls between them."""
    called = [_mark_of_call(kernel, generated) for kernel in kernels]
    marks = [_mark_of_kernel(name, generated) for name in names]
    places = [place for place, mark in enumerate(called) if mark]
    seen = [place for place, mark in enumerate(marks) if mark]
    found = _matched([called[p] for p in places], [marks[p] for p in seen])
    out = [NONE] * len(names)
    anchors = [(-1, -1)]
    for at, match in zip(seen, found, strict=True):
        if match != NONE:
            out[at] = places[match]
            anchors.append((at, places[match]))
    anchors.append((len(names), len(kernels)))
    for (at, call), (next_at, next_call) in pairwise(anchors):
        between = [k for k in range(at + 1, next_at) if not marks[k]]
        calls = [c for c in range(call + 1, next_call) if not called[c] and _launches(kernels[c])]
        for kernel, one in zip(between, _dealt(calls, [names[k] for k in between]), strict=True):
            out[kernel] = one
    return out


def _mark_of_call(kernel: str, generated: frozenset[str]) -> str:
    """What a call is found by in a replay; "" for nothing."""
    if kernel in generated:
        return kernel
    return _COLLECTIVE if kernel.startswith(_FUNCTIONAL) and _launches(kernel) else ""


def _mark_of_kernel(name: str, generated: frozenset[str]) -> str:
    """The same of what ran."""
    if name in generated:
        return name
    return _COLLECTIVE if describe(name).token == _COLLECTIVE else ""


def _launches(kernel: str) -> bool:
    """To wait for a collective launches nothing."""
    return not kernel.startswith(_WAITING)


def _dealt(calls: list[int], names: list[str]) -> list[int]:
    """Kernels to as many calls: all to a single one, else one atom (a product with what prepares
    and finishes it) to each; -1 where the numbers do not fit."""
    if len(calls) == 1:
        return calls * len(names)
    if len(calls) == len(names):
        return calls
    atoms = _atoms(names)
    if atoms and atoms[-1] + 1 == len(calls):
        return [calls[atom] for atom in atoms]
    return [NONE] * len(names)


def _atoms(names: list[str]) -> list[int]:
    """The number of the atom of each kernel: it begins with what prepares its heavy kernel."""
    tokens = [describe(name).token for name in names]
    heavy = [place for place, token in enumerate(tokens) if token in _HEAVY]
    if not heavy:
        return []
    atoms, number = [], 0
    for place, token in enumerate(tokens):
        begins = place > heavy[number] and token in (*_HEAVY, "FILL", "GEMM_AUX", "COPY")
        if begins and number + 1 < len(heavy):
            number += 1
        atoms.append(number)
    return atoms

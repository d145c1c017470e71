"""A softmax written out between two products: exponents, their sum, and a division by it.

Work in the order of launch becomes a text of one letter an operator, where a chain is a pattern:
P a product, # what stands in no chain, e exponents, s a sum, d a division, i a reciprocal, l a
logarithm, v a view or a copy, m what may stand between a sum and the division by it, x the larger
of two, p a power, q a root or a mean, o what no softmax does with its exponents, and a dot for all
else. What a compiler fused into one kernel has
several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.names.operator_names import VIEWS

VECTOR_PRODUCTS = ("aten::mv", "aten::addmv", "aten::addmv_", "aten::dot")
_WORDS = {
    "e": ("exp", "exp2"),
    "s": ("sum",),
    "d": ("div", "true_divide"),
    "i": ("reciprocal",),
    "l": ("log", "log2"),
    "x": ("maximum",),
    "p": ("pow",),
    "q": ("sqrt", "rsqrt", "mean", "norm", "linalg_vector_norm"),
    "o": ("cumsum", "logcumsumexp", "cumprod", "sigmoid", "gather", "multinomial"),
    "m": ("add", "clamp", "clamp_min"),
    "v": (*VIEWS, "copy", "to", "_to_copy", "empty", "empty_like", "empty_strided"),
}  # fmt: skip
_LETTER = {word: letter for letter, words in _WORDS.items() for word in words}
_IN_A_KERNEL = "esdilxo"  # what tells in a kernel that has more to do
# How far from each other two of them may stand; the views and allocations of a CPU count too.
_REACH = 48
_ALL = f"[^P#]{{0,{_REACH}}}"
# One sum: a balance of rows and columns has more. A logarithm of it makes a loss.
_WEIGHTS = f"[^P#slox]{{0,{_REACH}}}"
# A power is that of e unless it goes into a norm, or into an exponent itself.
_POWERS = f"[^P#esloxq]{{0,{_REACH}}}"
_CHAIN = re.compile(
    rf"""P{_ALL}?(?P<exponents>e|p(?={_POWERS}s{_POWERS}d{_POWERS}P))(?:
        {_WEIGHTS}s{_WEIGHTS}[di]{_WEIGHTS}P                                  # e / sum(e) @ v
        |{_WEIGHTS}s{_WEIGHTS}Pv*d                                            # (e @ v) / sum(e)
        |{_WEIGHTS}P[vm]*s[vm]*d                                              # with a later sum
        |[^P#lox]{{0,{_REACH}}}s[^P#lox]{{0,{_REACH}}}l{_WEIGHTS}e{_WEIGHTS}P   # exp(s - log(sum))
    )""",
    re.VERBOSE,
)


# The keys come in blocks: the larger of the largest so far and of these, the exponents that scale
# what was summed so far, then the product is added to it.
_BLOCKS = re.compile(
    rf"(?:P{_ALL}?x[^P#o]{{0,{_REACH}}}?(?P<exponents>e)[^P#lo]{{0,{_REACH}}}s[^P#lo]{{0,{_REACH}}}"
    r"P(?:[vm.]{0,24}(?=P))?)+"
)
# Products of many matrices at once, and of a matrix and a vector: linear layers make none of them.
BATCHED_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_", *VECTOR_PRODUCTS)


class WrittenSoftmax(NamedTuple):
    """Places in the sequence: two products, the exponents between them, the end of it all."""

    first: int
    exponents: int
    last: int
    end: int


def written_softmaxes(
    work: Work, sequence: Longs, product: NDArray[np.bool_], stops: NDArray[np.bool_]
) -> list[WrittenSoftmax]:
    """All of them, in order. The masks are of work: batched products, and what is in no chain."""
    named, fused = _letters_of_names(work)
    held = b"".join((*named.tolist(), *fused.tolist()))
    if b"s" not in held or not (b"e" in held or (b"p" in held and b"d" in held)):
        return []
    of_work = _letters(work, named, fused)
    of_work[stops], of_work[product] = b"#", b"P"
    places = _one_an_operator(work, sequence)
    letters = of_work[sequence[places]].tolist()
    place = np.repeat(places, [len(one) for one in letters])
    return [_placed(match, place) for match in _matches(b"".join(letters).decode())]


def _matches(text: str) -> Iterable[re.Match[str]]:
    """Chains from the first product on; a second product may be the first one of another."""
    blocks = list(_BLOCKS.finditer(text))
    yield from blocks
    text = _BLOCKS.sub(lambda match: "#" * len(match.group()), text)
    at = 0
    while (match := _CHAIN.search(text, at)) is not None:
        yield match
        at = match.end() - 1 if text[match.end() - 1] == "P" else match.end()


def _placed(match: re.Match[str], place: Longs) -> WrittenSoftmax:
    last = match.string.index("P", match.start("exponents"))
    at = (match.start(), match.start("exponents"), last, match.end() - 1)
    first, exponents, last, end = (int(place[one]) for one in at)
    return WrittenSoftmax(first, exponents, last, end + 1)


def _one_an_operator(work: Work, sequence: Longs) -> Longs:
    """Places of the first work of each operator: a sum may clear its memory first. Kernels of
    compiled code are work of their own."""
    operator = work.operator[sequence]
    fused = np.array([bool(name.fused_ops) for name in work.names], dtype=bool)
    again = np.zeros(sequence.size, dtype=bool)
    again[1:] = operator[1:] == operator[:-1]
    again &= (operator != NONE) & ~fused[work.name_code[sequence]]
    return np.flatnonzero(~again)


def _letters_of_names(work: Work) -> tuple[NDArray[np.bytes_], NDArray[np.bytes_]]:
    """Of each name as an operator, and as a kernel by what a compiler fused into it; as bytes, of
    which each letter takes one."""
    named = [_LETTER.get(_word(name), ".") for name in work.trace.names]
    fused = [_of_kernel(name.fused_ops) for name in work.names]
    return np.array(named, dtype="S8"), np.array(fused, dtype="S8")


def _letters(
    work: Work, named: NDArray[np.bytes_], fused: NDArray[np.bytes_]
) -> NDArray[np.bytes_]:
    """Of each piece of work, by what was fused into it, else by its operator."""
    trace = work.trace
    operator = take(trace.name_codes.astype(np.int64), work.operator)
    asked = np.where(operator == NONE, b".", named[np.maximum(operator, 0)])
    mine = fused[work.name_code]
    letters: NDArray[np.bytes_] = np.where(mine == b"", asked, mine)
    return letters


def _word(name: str) -> str:
    return name.removeprefix("aten::").rstrip("_") if name.startswith("aten::") else ""


def _of_kernel(fused: tuple[str, ...]) -> str:
    """In the order in which a softmax has them; the operators of a kernel are in none."""
    if not fused:
        return ""
    held = {_LETTER.get(word.rstrip("_"), ".") for word in fused}
    if "logsumexp" in fused:
        return "esle" if "e" in held else "esl"
    telling = "".join(letter for letter in _IN_A_KERNEL if letter in held)
    return telling or ("v" if held == {"v"} else ".")

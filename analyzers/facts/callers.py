"""Which line of a loop asks for a call of a model: where its callers part from those of others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tracer.findings import Where


class Line(NamedTuple):
    """A line that calls, the function that it is in."""

    file: str
    line: int
    function: str

    @property
    def where(self) -> Where:
        """The same as the place of a finding."""
        return Where(self.file, self.line, self.function)


class Asked(NamedTuple):
    """The line that asks, and the function that it asks; "" where it calls the model itself."""

    where: Where
    function: str


def asked_from(mine: Iterable[str], others: Iterable[str]) -> Asked:
    """Where most of these calls, told by their `callers`, leave the way of the others: the line in
    the function that both come through. Else the innermost function that is theirs alone."""
    chains = Counter(text for text in mine if text)
    if not chains:
        return Asked(Where(), "")
    chain = _lines(chains.most_common(1)[0][0])
    ways = {line for text in set(others) if text for line in _lines(text)}
    through = {(line.file, line.function) for line in ways}
    own = [(line.file, line.function) not in through for line in chain]
    parting = [i for i, line in enumerate(chain) if not own[i] and line not in ways]
    if parting:
        at = parting[0]
        return Asked(chain[at].where, chain[at - 1].function if at else "")
    if any(own):
        alone = chain[own.index(True)]
        return Asked(alone.where, alone.function)
    return Asked(chain[0].where, "") if chain else Asked(Where(), "")


def _lines(text: str) -> list[Line]:
    return [Line(*line) for line in json.loads(text)]

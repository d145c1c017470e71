"""Which calls of a model are looked at: a range of a module costs the program about as much as an
operator does, and calls that get as much to do mostly call the same modules.

The first calls of a kind are looked at, and of the later ones every so many: those between rest. Of
these only the order is noted in which modules are called. Where it is that of the look before, the
ranges are told by it afterwards. A kind whose calls differ rests no more; a model of which a router
chooses the experts never does, since its calls differ in their operators.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

FIRST_CALLS, EVERY = 4, 8
# Calls of a kind that may differ from the look before: a program may change once, or warm up.
_CHANGES = 2
# Kinds that are told apart: a loop may have new sizes in each step.
_MOST_KINDS = 10_000
_ROUTED = re.compile(r"expert|moe|router|mixture", re.IGNORECASE)
_COLUMNS = ("start_ns", "end_ns", "thread", "kind", "rests", "alike")


def is_routed(model: nn.Module) -> bool:
    """Whether a part of it, by its name or type, may compute more or less from call to call."""
    named = model.named_modules()
    return any(_ROUTED.search(f"{path} {type(part).__name__}") for path, part in named)


@dataclass(eq=False)
class Kind:
    """Calls that get as much to do, as far as their arguments tell."""

    number: int
    calls: int = 0  # since the looks last differed
    changes: int = 0
    modules: list[int] = field(default_factory=list)  # of the last look, by `id`, in order
    freed: int = 0  # modules freed before it ended
    never_rests: bool = False  # its calls were unlike too often

    def begins(self) -> bool:
        """Another call begins; whether it rests."""
        number = self.calls
        self.calls += 1
        return number >= FIRST_CALLS and number % EVERY > 0 and not self.never_rests

    def differs(self, calls: int) -> None:
        """A call was unlike the look before; since then there were so many."""
        self.changes += 1
        self.calls = calls
        self.never_rests |= self.changes > _CHANGES


class Look:
    """The modules known to the ranges, each question of a call noted, and the threads that ask."""

    def __init__(self, known: dict[int, Any], heard: list[int]) -> None:
        self.threads = {threading.get_ident()}
        self._known = known
        self._hear = heard.append

    def __getitem__(self, key: int) -> Any:
        self._hear(key)
        self.threads.add(threading.get_ident())
        return self._known[key]


class Looks:
    """The kinds of calls, and what became of each call while ranges were written."""

    def __init__(self) -> None:
        self.kinds: dict[Hashable, Kind] = {}
        self._orders: dict[tuple[int, ...], list[int]] = {}  # kinds of a model share one
        self._rows = array("q")

    def new(self, key: Hashable) -> Kind | None:
        """Know a kind from now on; None where there are too many."""
        if len(self.kinds) >= _MOST_KINDS:
            return None
        kind = self.kinds[key] = Kind(len(self.kinds))
        return kind

    def rested(self, kind: Kind, heard: list[int], times: tuple[int, ...], freed: int) -> None:
        """A call that rested has ended, in which these modules were called, in order, by `id`. The
        next ones are looked at where it was not like the look before. `times`: start, end and
        thread; `freed`: modules freed by now, so that an `id` may have become another's."""
        alike = heard == kind.modules and freed == kind.freed
        if not alike:
            kind.differs(0)
        self._note(kind, times, rests=True, alike=alike)

    def looked(
        self, kind: Kind, heard: list[int], times: tuple[int, ...], freed: int, look: Look
    ) -> None:
        """The same of a call that was looked at. One on several threads cannot be told by
        another."""
        if kind.modules and heard != kind.modules:
            kind.differs(1)
        if len(look.threads) > 1:
            kind.never_rests = True
        kind.modules, kind.freed = self._orders.setdefault(tuple(heard), heard), freed
        self._note(kind, times, rests=False, alike=True)

    def overlooked(self, kind: Kind) -> None:
        """A look has ended in which modules were called that had no name yet: it tells nothing."""
        kind.calls, kind.modules = 0, []

    def _note(self, kind: Kind, times: tuple[int, ...], *, rests: bool, alike: bool) -> None:
        # One call of C code: another thread cannot come between the numbers of a row.
        self._rows.extend((*times, kind.number, rests, alike))

    def table(self) -> pd.DataFrame:
        """A row a call, in order of their ends: start_ns, end_ns, thread (the system's number),
        kind, whether it rested, and whether it called the modules of the look before."""
        rows = np.array(self._rows[:], dtype=np.int64).reshape(-1, len(_COLUMNS))
        return pd.DataFrame(dict(zip(_COLUMNS, rows.T, strict=True))).astype(
            {"rests": bool, "alike": bool}
        )

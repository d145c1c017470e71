"""What runs the tasks of all ranks, and keeps what they found until it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tracer.rank_analysis import Doings, Interval, Rows
from tracer.ranks.task import Done, Failure, Task

# Called with how many ranks are done and how many there are.
Progress = Callable[[int, int], None]


class Engine(Protocol):
    """Runs tasks, one rank each. Rows and reports stay where the engine keeps them."""

    def summarise(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Done | Failure]]:
        """Understand all ranks; gives the place of a task in `tasks` and its result, in any order.
        The results carry neither rows nor report: those are asked for by place."""
        ...

    def rows(self, place: int, begin: int, end: int) -> Rows:
        """Collectives of one task's rank."""
        ...

    def report(self, place: int) -> str:
        """The whole report of one task's rank, as JSON; "" where none was wanted."""
        ...

    def describe(
        self, questions: Sequence[tuple[str, Sequence[Sequence[Interval]]]]
    ) -> list[list[Doings]]:
        """How the rank recorded at each place spent the intervals of its questions."""
        ...

    def close(self) -> None:
        """Give back what was kept."""
        ...

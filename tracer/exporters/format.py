"""Numbers as text: the only room that makes milliseconds and percent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "-"
_UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1))
_BYTE_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


@dataclass(frozen=True)
class Scale:
    """A unit of time and the number of decimals shown in it."""

    unit: str
    unit_ns: int
    places: int

    @property
    def quantum_ns(self) -> float:
        """The smallest step that is shown."""
        return float(self.unit_ns) / float(10**self.places)

    def text(self, ns: float) -> str:
        """The number alone: `61.0`; a time that is too small to show is `<0.1`."""
        return self.quanta_text(round(ns / self.quantum_ns), ns > 0)

    def quanta_text(self, quanta: int, measured: bool) -> str:
        """The number for so many quanta; `measured` tells a small time from none."""
        if quanta == 0 and measured and self.places:
            return f"<{1 / 10**self.places:.{self.places}f}"
        return f"{quanta / 10**self.places:,.{self.places}f}"

    def with_unit(self, ns: float) -> str:
        """`61.0 ms`."""
        return f"{self.text(ns)} {self.unit}"


def scale_for(ns: float, digits: int = 3) -> Scale:
    """The scale that shows a time of this size with about so many digits."""
    size = abs(ns)
    for unit, unit_ns in _UNITS:
        if size >= unit_ns or unit == "ns":
            whole_digits = len(str(int(size // unit_ns)))
            places = 0 if unit == "ns" else min(max(digits - whole_digits, 0), 2)
            return Scale(unit, unit_ns, places)
    raise AssertionError("the last unit fits any time")


def table_scale(largest_ns: float) -> Scale:
    """The scale of a column of times: one decimal, two where the largest is below ten."""
    scale = scale_for(largest_ns)
    if scale.unit == "ns":
        return scale
    return Scale(scale.unit, scale.unit_ns, 2 if largest_ns < 10 * scale.unit_ns else 1)


def duration_text(ns: float | None) -> str:
    """`61.0 ms`, `1.25 s`, `-` for a time that was not measured."""
    return UNKNOWN if ns is None else scale_for(ns).with_unit(ns)


def change_text(ns: float) -> str:
    """`-0.38 ms`, `+12.0 us`: how much longer something takes."""
    return f"{'+' if ns > 0 else ''}{duration_text(ns)}"


def change_percent_text(ratio: float | None) -> str:
    """`-12 %`, `+1.3 %`; `-` for a change of nothing."""
    if ratio is None:
        return UNKNOWN
    text = percent_text(abs(ratio))
    return text if text.startswith("<") else f"{'+' if ratio > 0 else '-' if ratio else ''}{text}"


def percent_text(ratio: float | None) -> str:
    """`57 %` for a sentence; below ten percent with one decimal."""
    if ratio is None:
        return UNKNOWN
    percent = 100 * ratio
    if 0 < percent < 0.1:
        return "<0.1 %"
    if percent < 10:
        return f"{percent:.1f} %"
    # 99.96 % is not all of it.
    return f"{percent:.1f} %" if 99.5 <= percent < 100 else f"{percent:.0f} %"


def count_text(count: int | None) -> str:
    """`1,093`, `-` when unknown."""
    return UNKNOWN if count is None or count < 0 else f"{count:,}"


def bytes_text(size: int) -> str:
    """`1.2 GB`."""
    for unit, unit_bytes in _BYTE_UNITS:
        if size >= unit_bytes:
            return f"{size / unit_bytes:.1f} {unit}"
    return f"{size} bytes"


def counted(count: int, noun: str) -> str:
    """`1 step`, `4 steps`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def shares(values: Sequence[int], whole: int) -> list[int]:
    """Divide `whole` like the values, in whole numbers that add up to it (largest remainders)."""
    total = sum(values)
    if total <= 0:
        return [0] * len(values)
    floors = [value * whole // total for value in values]
    remainders = [value * whole % total for value in values]
    missing = whole - sum(floors)
    order = sorted(range(len(values)), key=lambda i: (-remainders[i], i))
    for position in order[:missing]:
        floors[position] += 1
    return floors


def numbers_text(numbers: Sequence[int]) -> str:
    """`0-7`, `0, 2, 4`."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))

"""The knowledge about kernel names as a command, and its API by the name that callers look for.

`python -m tracer.analyzers.kernel_names FILE.csv` reads a column `kernel_name` and writes CSV
`kernel_name,category,library`; with `--score` it compares with the column `category` and writes
how many names, and how much of the time in `total_dur_us`, are right.

Import from `kernel_table` inside the package: a module that runs as a command must not be loaded
before it.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from tracer.analyzers.names.kernel_table import CATEGORIES, TOKENS, KernelName, describe
from tracer.errors import InputError, TracerError, UsageError

__all__ = ["CATEGORIES", "TOKENS", "KernelName", "Score", "describe", "main", "score"]


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
        names,
        names - len(wrong),
        time_us,
        time_us - wrong_time_us,
        false_communication,
        tuple(wrong),
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
    try:
        (_write_score if scoring else _write_names)(rows, sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough. Python flushes again at exit, and must not fail then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Tables: sorted, filtered, fitted to a width."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len

from tests.tui.samples import NASTY, decode_analysis
from tracer.tui.look import Look
from tracer.tui.model.kernels import build_kernels, histogram, kernels_table
from tracer.tui.model.table import (
    Arrangement,
    Column,
    Table,
    arrange,
    csv_rows,
    cut_end,
    find,
    fit,
    row_line,
    title_line,
)


def small_table() -> Table:
    return Table(
        (
            Column(
                "name", "name", ["beta", "alpha", "gamma", "delta"], None, "left", flexible=True
            ),
            Column("how", "how", ["module", "none", "name", "module"], None, "left"),
            Column("ms", "ms", ["1", "9", "3", "3"], np.array([1, 9, 3, 3])),
        ),
        ["beta full", "alpha full", "gamma full", "delta full"],
        last=np.array([False, True, False, False]),
        kept_key="how",
    )


def names(table: Table, arrangement: Arrangement) -> list[str]:
    return [table.names[row].split()[0] for row in arrange(table, arrangement).tolist()]


def test_numbers_sort_the_largest_first_and_equal_ones_keep_their_order() -> None:
    assert names(small_table(), Arrangement(2)) == ["gamma", "delta", "beta", "alpha"]
    assert names(small_table(), Arrangement(2, True)) == ["beta", "gamma", "delta", "alpha"]


def test_names_sort_by_letter_and_unattributed_rows_stay_last() -> None:
    assert names(small_table(), Arrangement(0)) == ["beta", "delta", "gamma", "alpha"]


def test_a_filter_keeps_unattributed_rows_unless_it_asks_about_them() -> None:
    table = small_table()
    assert names(table, Arrangement(2, query="gam")) == ["gamma", "alpha"]
    assert names(table, Arrangement(2, query="how:module")) == ["delta", "beta"]
    assert names(table, Arrangement(2, query="how:none")) == ["alpha"]
    assert names(table, Arrangement(2, query="module full")) == ["delta", "beta", "alpha"]


def test_rows_that_stay_are_told_apart_from_those_that_match() -> None:
    """Two rows of four are shown for a word that one holds."""
    table = small_table()
    assert table.holding("gam").sum() == table.unmatched("gam") == 1
    assert table.unmatched("how:module") == table.unmatched("alpha") == table.unmatched("") == 0


def test_search_looks_at_full_names() -> None:
    table = small_table()
    order = arrange(table, Arrangement(2))
    assert find(table, order, "DELTA FULL") == [1]


def test_numbers_keep_their_width_and_names_shrink() -> None:
    table = Table(
        (
            Column("name", "name", ["n" * 300, "m" * 300], None, "left", flexible=True),
            Column("extra", "extra", ["e" * 20] * 2, None, "left", rank=1),
            Column("ms", "ms", ["1,234.5", "0.1"], np.array([1234.5, 0.1])),
        ),
        ["n" * 300, "m" * 300],
    )
    for width in (40, 60, 80, 200):
        fitted = fit(table, width)
        for row in range(2):
            line = row_line(fitted, row, False, width)
            assert line.cell_len <= width
            assert ["1,234.5", "0.1"][row] in line.plain
        assert title_line(Look(), table, fitted, Arrangement(2)).cell_len <= width
    assert [column.key for column in fit(table, 40).columns] == ["name", "ms"]


def test_names_that_would_look_alike_are_numbered() -> None:
    alike = [f"{'a' * 50}{n}{'b' * 50}" for n in range(3)]
    table = Table((Column("name", "name", alike, None, "left", flexible=True),), alike)
    shown = fit(table, 30).cells[0]
    assert len(set(shown)) == 3
    assert all(cell_len(name) <= 27 for name in shown)


def test_columns_stay_in_place_whatever_the_names() -> None:
    analysis = decode_analysis(names=NASTY)
    for look in (Look(), Look(ascii=True)):
        table = kernels_table(look, build_kernels(analysis))
        fitted = fit(table, 100)
        rows = [row_line(fitted, row, False, 100) for row in range(len(table))]
        ends = {cell_len(row.plain.rstrip()) for row in rows}
        assert ends == {cell_len(rows[0].plain.rstrip())}
        text = "".join(row.plain for row in rows)
        assert not any(ord(c) < 32 or ord(c) == 0x7F for c in text)
        assert "\u202e" not in text
        assert not look.ascii or text.replace("…", "").isascii()


def test_sentences_are_cut_at_their_end() -> None:
    assert cut_end("the whole text", 30) == "the whole text"
    assert cut_end("the whole text", 10) == "the whole…"
    assert cell_len(cut_end("注意力核函数", 6)) <= 6


def test_what_is_exported_has_full_names() -> None:
    table = small_table()
    rows = csv_rows(table, arrange(table, Arrangement(2, query="gam")))
    assert rows == [["name", "how", "ms"], ["gamma full", "name", "3"], ["alpha full", "none", "9"]]


def test_a_histogram_counts_every_call_and_outliers_apart() -> None:
    durations = np.array([100] * 50 + [104] * 40 + [96] * 9 + [5000])
    shape = histogram(durations)
    assert shape.outliers == 1
    assert int(shape.counts.sum()) == 99
    assert (shape.low_ns, shape.high_ns) == (96, 104)


def test_each_kernel_row_knows_its_work() -> None:
    analysis = decode_analysis()
    index = build_kernels(analysis)
    sums = [int(index.durations_ns[index.works(row)].sum()) for row in range(len(analysis.kernels))]
    assert sums == analysis.kernels["total_ns"].tolist()
    counts = [len(index.works(row)) for row in range(len(analysis.kernels))]
    assert counts == analysis.kernels["count"].tolist()

"""`tracer diff` of jobs of several ranks: the job first, then its ranks, then the one that tells
most in full."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.cells import cell_len

from tests.make_nsys import Export, add_process, header
from tests.rank_samples import Call, late_rank_calls, save_ranks
from tests.test_diff import on_cpu
from tracer.analyzers.diff.compare import compare
from tracer.cli import main
from tracer.diff_analysis import FindingChange, Measure
from tracer.exporters import diff_json
from tracer.exporters.diff_findings import CostChange, cost_changes
from tracer.exporters.job_verdict import job_verdict
from tracer.findings import Finding
from tracer.job_diff import JobChange, JobDiff, JobPhase
from tracer.rank_analysis import RankAnalysis
from tracer.sources import open_source

RANKS = Path(__file__).parent / "recordings" / "ranks"
LINE = "tests/gpu/two_ranks.py:114 Model.forward"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(Path(diff_json.__file__).with_name("diff.schema.json").read_text())
    return jsonschema.Draft202012Validator(schema)


def text_of(capsys: Capture, *arguments: Path | str, status: int = 0) -> str:
    """What is printed, its lines joined; the answer ends before `A: `."""
    assert main(["diff", *map(str, arguments)]) == status
    return " ".join(capsys.readouterr().out.split())


def document_of(capsys: Capture, *arguments: Path | str) -> dict[str, Any]:
    main(["diff", *map(str, arguments), "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def job(folder: Path, late: int, ranks: int = 2, wait: float = 3900) -> Path:
    """Steps of two collectives for which the others wait for the slow kernel of one rank."""
    calls = late_rank_calls(ranks=ranks, late=late, wait=wait)
    ends = [call.ends for call in calls][1::2]
    steps = list(zip([900.0, *ends[:-1]], ends, strict=True))
    ranges = [(begin + 1, end) for begin, end in steps]
    return save_ranks(folder, calls, ranks, steps=ranges, busy={late: "gemm"})


def export_of(path: Path, *places: Path) -> Path:
    """One file in which several processes ran."""
    traces = [open_source(place) for place in places]
    export, base = Export(), min(int(trace.start_ns.min()) for trace in traces)
    header(export)
    for rank, trace in enumerate(traces):
        add_process(export, trace, 77 + rank, base)
    return export.write(path)


# --- recordings of two GPUs ----------------------------------------------------------------------


def test_the_job_is_told_first_and_why_it_is_faster(capsys: Capture) -> None:
    said = text_of(capsys, RANKS / "late", RANKS / "symmetric")
    assert said.startswith(
        "B is 67 % faster a step: 31.5 -> 10.5 ms, on the slowest rank of each (0 in A, 1 in B). "
        "The others wait for rank 1 no more (16.7 ms a step): in A its host takes 201 ms longer "
        f"than rank 0's for the same calls: host work outside operators at {LINE}, 12 times up to "
        "20.3 ms. On rank 1: host work outside operators -23.7 ms (gone: "
    )
    assert "rank 1 of A and of B, the late one" in said
    order = ["RANKS", "FINDINGS ACROSS RANKS 1 gone", "the late one", "STEPS", "WHERE THE TIME"]
    places = [said.index(title) for title in order]
    assert places == sorted(places)


def test_each_rank_has_a_row(capsys: Capture) -> None:
    assert main(["diff", str(RANKS / "late"), str(RANKS / "symmetric"), "--width", "80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    first = next(n for n, line in enumerate(lines) if line.startswith("RANKS"))
    rows = [line.split() for line in lines[first + 2 : first + 4]]
    assert [row[0] for row in rows] == ["0", "1"]
    assert [row[1:5] for row in rows] == [
        ["31.5", "ms", "10.5", "ms"],
        ["31.3", "ms", "10.5", "ms"],
    ]


def test_the_document_tells_the_job_and_the_rank(capsys: Capture, validator: Any) -> None:
    document = document_of(capsys, RANKS / "late", RANKS / "symmetric")
    validator.validate(document)
    told = document["job"]
    assert (told["rank"], told["why"]) == (1, "late")
    (phase,) = told["phases"]
    assert (phase["phase"], phase["slowest_before"], phase["slowest_after"]) == ("step", 0, 1)
    assert -0.68 < phase["step"]["change_ratio"] < -0.65
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    waits = [rank["before_wait_ns"] for rank in told["ranks"]]
    assert waits[0] > 20 * waits[1]
    (found,) = told["findings"]
    assert (found["rule"], found["status"], found["after_cost_ns"]) == ("comm.straggler", "gone", 0)
    # What programs read of one recording is that of the rank that tells most.
    assert document["before"]["rank"] == document["after"]["rank"] == 1
    assert document["phases"][0]["step"] == told["ranks"][1]["phases"][0]["step"]


def test_a_new_late_rank_is_named_and_fails_the_gate(capsys: Capture) -> None:
    places = RANKS / "symmetric", RANKS / "late"
    assert main(["diff", *map(str, places), "--max-slowdown", "5%"]) == 1
    out, err = capsys.readouterr()
    said = " ".join(out.split())
    assert said.startswith("B is 3.0 times as slow a step: 10.5 -> 31.5 ms, ")
    assert "New in B: the others wait for rank 1 (16.7 ms a step): its host takes 201 ms" in said
    assert err == "tracer: --max-slowdown 5%: a step is 3.0 times as slow in B, 10.5 -> 31.5 ms\n"
    assert main(["diff", *map(str, reversed(places)), "--max-slowdown", "5%"]) == 0


def test_another_kind_of_program_is_said_to_be(capsys: Capture) -> None:
    said = text_of(capsys, RANKS / "ddp", RANKS / "decode")
    assert said.startswith("A and B cannot be compared")
    assert "FINDINGS ACROSS RANKS" not in said


def test_the_tensor_parallel_pairs(shared: Path, tmp_path: Path, capsys: Capture) -> None:
    """The same decode, and in A a rank sleeps before each step."""
    for name in ("tp_straggler_host", "tp_decode"):
        (tmp_path / name).mkdir()
        for path in (shared / "h200x2").glob(f"{name}_rank?.json.gz"):
            shutil.copy(path, tmp_path / name)
    document = document_of(capsys, tmp_path / "tp_straggler_host", tmp_path / "tp_decode")
    assert document["job"]["rank"] == 1
    (found,) = document["job"]["findings"]
    assert found["status"] == "still"
    assert found["before_cost_ns"] - found["after_cost_ns"] > 5e6
    groups = document["phases"][0]["breakdown"]["groups"]
    assert groups["overhead"]["parts"]["host"]["change_ns"] < -8e6


# --- one file of several processes ---------------------------------------------------------------


def test_processes_of_one_file_are_the_ranks_of_a_job(tmp_path: Path, capsys: Capture) -> None:
    ours = export_of(tmp_path / "a.sqlite", *(RANKS / "late" / f"rank{n}" for n in (0, 1)))
    theirs = export_of(tmp_path / "b.sqlite", *(RANKS / "symmetric" / f"rank{n}" for n in (0, 1)))
    said = text_of(capsys, ours, theirs)
    assert said.startswith("B is 67 % faster a ")
    assert "The others wait for rank 1 no more (16.7 ms a step)" in said
    one = text_of(capsys, f"{ours}#rank1", f"{theirs}#rank1")
    assert "RANKS" not in one
    assert one.startswith("B is 66 % faster a ")


# --- numbers of ranks ----------------------------------------------------------------------------


def test_other_numbers_of_ranks_are_said_in_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    ours, theirs = job(tmp_path / "a", 1, ranks=4), job(tmp_path / "b", 1, ranks=2)
    said = text_of(capsys, ours, theirs)
    assert said.startswith(
        "Not like with like (A has 4 ranks, B has 2: ranks 0, 1 are compared one by one). "
    )
    assert "Only A has ranks 2, 3." in said
    document = document_of(capsys, ours, theirs)
    assert document["comparable"] is False
    assert (document["job"]["only_before"], document["job"]["only_after"]) == ([2, 3], [])
    assert document["job"]["after"]["ranks"] == [0, 1]


def test_what_cannot_be_compared_comes_before_the_numbers(capsys: Capture) -> None:
    said = text_of(capsys, RANKS / "ddp", RANKS / "decode" / "rank0", status=4)
    answer, _, rest = said.partition(" A has 2 ranks, B has 1: rank 0 alone is compared. ")
    assert answer.startswith("A and B cannot be compared")
    assert rest


def test_one_recording_beside_a_job_is_its_rank(tmp_path: Path, capsys: Capture) -> None:
    ours, theirs = job(tmp_path / "a", 1), job(tmp_path / "b", 1)
    said = text_of(capsys, ours, theirs / "rank1", status=4)
    assert said.startswith("Not like with like (A has 2 ranks, B has 1: rank 1 alone is compared")
    assert "B: rank 0 missing, 1 of 2." in said
    assert " The others wait for rank 1 in A; in B that could not be checked. " in said


def test_jobs_without_a_rank_in_common(tmp_path: Path, capsys: Capture) -> None:
    ours, theirs = job(tmp_path / "a", 1, ranks=4), job(tmp_path / "b", 1, ranks=4)
    for folder, numbers in ((ours, (2, 3)), (theirs, (0, 1))):
        for number in numbers:
            shutil.rmtree(folder / f"rank{number}")
    assert main(["diff", str(ours), str(theirs)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert f"A {ours} holds ranks 0, 1, B {theirs} ranks 2, 3: give jobs" in err


def test_a_missing_rank_is_4(tmp_path: Path, capsys: Capture) -> None:
    ours, theirs = job(tmp_path / "a", 1, ranks=3), job(tmp_path / "b", 1, ranks=3)
    shutil.rmtree(theirs / "rank2")
    assert "B: rank 2 missing, 2 of 3." in text_of(capsys, ours, theirs, status=4)


def test_captures_are_of_one_rank(tmp_path: Path, capsys: Capture) -> None:
    ours = job(tmp_path / "a", 1)
    assert main(["diff", str(ours), str(ours), "--capture", str(ours / "rank0")]) == 2
    assert "--capture is read for one rank alone" in capsys.readouterr().err


# --- who tells most ------------------------------------------------------------------------------


def test_the_late_rank_of_either_side_is_told_in_full(tmp_path: Path, capsys: Capture) -> None:
    ours, theirs = job(tmp_path / "a", 0, ranks=3), job(tmp_path / "b", 2, ranks=3, wait=7900)
    document = document_of(capsys, ours, theirs)
    assert (document["job"]["rank"], document["job"]["why"]) == (2, "late")
    statuses = {f["status"]: f for f in document["job"]["findings"]}
    assert statuses["gone"]["before"]["detail"]["rank"] == 0
    assert statuses["new"]["after"]["detail"]["rank"] == 2
    said = text_of(capsys, ours, theirs)
    assert "The others wait for rank 0 no more (7.80 ms a step)" in said
    assert "New in B: the others wait for rank 2 (15.8 ms a step): other.unattributed " in said


def test_where_nobody_is_late_the_slowest_is_told(tmp_path: Path, capsys: Capture) -> None:
    together = [Call({0: at, 1: at}, at + 100) for at in range(1000, 41000, 2000)]
    steps = [(call.enters[0] - 500, call.ends) for call in together]
    slower = [(begin - (400 if n else 0), end) for n, (begin, end) in enumerate(steps)]
    for folder, ranges in (("a", steps), ("b", slower)):
        save_ranks(tmp_path / folder, together, 2, steps=ranges)
    said = text_of(capsys, tmp_path / "a", tmp_path / "b")
    assert "No rank holds up the others, in A or in B." in said
    assert ", the slowest one" in said


def test_of_many_ranks_those_that_changed_most_have_rows(tmp_path: Path, capsys: Capture) -> None:
    ours, theirs = job(tmp_path / "a", 1, ranks=20), job(tmp_path / "b", 1, ranks=20, wait=1900)
    said = text_of(capsys, ours, theirs)
    assert "4 more ranks that changed less; all are in the JSON." in said
    assert len(document_of(capsys, ours, theirs)["job"]["ranks"]) == 20


def test_ranks_that_come_late_together_are_named_together() -> None:
    late = Finding("comm.straggler", "warning", "ranks 2, 3 come late; see", 8, cost_ns=9000)
    late = replace(late, detail={"rank": 2, "ranks": [2, 3]})
    row = CostChange(FindingChange(late, None), 9000.0, 0.0, True, None)
    detail, nothing = compare(on_cpu(), on_cpu()), RankAnalysis(ranks=(), alignment=None)
    phase = JobPhase("decode", Measure(10_000, 9_000, 100), (2, 2))
    change = JobChange(nothing, nothing, (phase,), (), (), (), (), 2, "late")
    answer = job_verdict(JobDiff("a", "b", change, detail), cost_changes(detail), [row])
    assert "The others wait for ranks 2, 3 no more (9.00 us a step): in A see." in answer


def test_a_slower_machine_is_said_of_jobs_as_well() -> None:
    detail = compare(on_cpu(), on_cpu(factor=1.4))
    nothing = RankAnalysis(ranks=(), alignment=None)
    phase = JobPhase("decode", Measure(10_000, 14_000, 100), (0, 0))
    change = JobChange(nothing, nothing, (phase,), (), (), (), (), 0, "slowest")
    answer = job_verdict(JobDiff("a", "b", change, detail), cost_changes(detail), [])
    assert answer.startswith(
        "A decode step 10.0 -> 14.0 us, but all operators x1.4: the machine was slower or busier "
        "in B, on rank 0, the slowest in both. Who waits for whom is not known, "
    )

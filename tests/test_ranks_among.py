"""Ranks of one job among other recordings: `tracer report` says so before its index."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.cells import cell_len

from tests.make_nsys import Export, add_process, header
from tests.rank_samples import late_rank_calls, save_ranks
from tests.test_cli import write_trace
from tests.test_html import Page
from tracer import sources
from tracer.cli import main
from tracer.exporters import several_json
from tracer.store import load_run

RANKS = Path(__file__).parent / "recordings" / "ranks"
LATE = "The others wait for rank 1: last in 276 of 287 collectives of "

Capture = pytest.CaptureFixture[str]


def beginning(capsys: Capture, *arguments: Path | str) -> str:
    """What stands before the index, without blanks: where a long path is cut differs."""
    assert main(["report", *map(str, arguments)]) == 0
    return squeezed(capsys.readouterr().out.partition("RECORDINGS")[0])


def squeezed(text: str) -> str:
    return "".join(text.split())


def test_the_ranks_in_a_file_beside_another_recording(tmp_path: Path, capsys: Capture) -> None:
    traces = [load_run(RANKS / "late" / name) for name in ("rank0", "rank1")]
    export, base = Export(), min(int(trace.start_ns.min()) for trace in traces)
    header(export)
    for rank, trace in enumerate(traces):
        add_process(export, trace, 77 + rank, base)
    file = export.write(tmp_path / "job.sqlite")
    write_trace(tmp_path / "other.json")
    assert beginning(capsys, tmp_path) == squeezed(
        f"Recordings 1, 2 are ranks of one job. {LATE}one unnamed group, by 1.27 ms on average. "
        f"`tracer ranks {file}` compares them."
    )
    assert main(["report", str(tmp_path), "--width", "80"]) == 0
    assert max(map(cell_len, capsys.readouterr().out.partition("══")[0].splitlines())) <= 80


def test_several_jobs_are_told_each(tmp_path: Path, capsys: Capture) -> None:
    for name in ("late", "graph"):
        shutil.copytree(RANKS / name, tmp_path / name)
    said = beginning(capsys, tmp_path)
    first, second = said.split("comparesthem.")[:2]
    assert first.startswith(
        squeezed("Recordings 1, 2 are ranks of one job. No rank holds up the others")
    )
    assert first.endswith(squeezed(f"`tracer ranks {tmp_path / 'graph'}`"))
    assert second.startswith(squeezed(f"Recordings 3, 4 are ranks of one job. {LATE}TP group 0 "))
    assert second.endswith(squeezed(f"`tracer ranks {tmp_path / 'late'}`"))


def test_the_pairs_of_a_folder_are_told_by_their_names(
    shared: Path, tmp_path: Path, capsys: Capture
) -> None:
    for name in ("tp_straggler_host", "train_ddp"):
        for path in (shared / "h200x2").glob(f"{name}_rank?.json.gz"):
            shutil.copy(path, tmp_path)
    said = beginning(capsys, tmp_path)
    pattern = tmp_path / "tp_straggler_host_rank*.json.gz"
    assert squeezed("The others wait for rank 1: last in 95 of 95") in said
    assert squeezed(f"`tracer ranks {pattern}` compares them.") in said
    assert main(["ranks", *map(str, tmp_path.glob(pattern.name))]) == 0


def test_nothing_is_read_again(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_ranks(tmp_path, late_rank_calls(ranks=2, late=1), 2, busy={1: "gemm"})
    write_trace(tmp_path / "other.json")
    opened: list[Any] = []
    read = sources.open_source

    def counted(path: Any, *more: Any) -> Any:
        opened.append(Path(path).name)
        return read(path, *more)

    monkeypatch.setattr(sources, "open_source", counted)
    assert squeezed("The others wait for rank 1: last in 20 of 20") in beginning(capsys, tmp_path)
    assert sorted(opened) == ["other.json", "rank0", "rank1"]


def test_what_is_no_job_is_not_called_one(tmp_path: Path, capsys: Capture) -> None:
    for name in ("run.r1.json", "run.r2.json", "other.json"):  # names alone, and no collective
        write_trace(tmp_path / name)
    assert beginning(capsys, tmp_path) == ""
    twice = tmp_path / "twice"
    save_ranks(twice / "a", late_rank_calls(ranks=2, late=1, calls=2), 2)
    shutil.copytree(twice / "a" / "rank0", twice / "b" / "rank0")
    shutil.copytree(twice / "a" / "rank0", twice / "b" / "other")
    assert beginning(capsys, twice / "b") == ""


def test_ranks_that_share_nothing_are_called_ranks(
    shared: Path, tmp_path: Path, capsys: Capture
) -> None:
    shutil.copy(shared / "traces" / "nsys-2gpu-torch-1s-h100.sqlite.gz", tmp_path)
    write_trace(tmp_path / "other.json")
    assert beginning(capsys, tmp_path) == squeezed(
        "Recordings 1, 2 are ranks of one job; they share no collective, so that nothing tells who "
        "waits for whom."
    )


# --- JSON, page, gate ----------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A job whose second rank is late, beside another recording that comes first."""
    write_trace(tmp_path / "a.json")
    shutil.copytree(RANKS / "late", tmp_path / "late")
    return tmp_path


def document(capsys: Capture, *arguments: Path | str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_the_json_tells_of_the_job_what_a_document_of_its_ranks_does(
    mixed: Path, capsys: Capture
) -> None:
    several = document(capsys, "report", mixed)
    schema = Path(several_json.__file__).with_name("report.schema.json")
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(several)
    (job,) = several["jobs"]
    assert squeezed(job["answer"]).startswith(squeezed(f"{LATE}TP group 0 (default_pg), by"))
    assert job["path"] == str(mixed / "late")
    paths = [several["reports"][place]["source"]["path"] for place in job["reports"]]
    assert paths == [rank["path"] for rank in job["summary"]]
    assert [Path(path).name for path in paths] == ["rank0", "rank1"]
    alone = document(capsys, "ranks", job["path"])
    told = {check["rule"]: check for check in alone.pop("checks")}
    assert all(check == told[check["rule"]] for check in job.pop("checks"))
    assert {key: job[key] for key in job.keys() & alone.keys()} == {
        key: alone[key] for key in alone.keys() - {"schema", "tracer", "ranks"}
    }


def test_a_rank_that_is_not_there_is_told(tmp_path: Path, capsys: Capture) -> None:
    save_ranks(tmp_path / "job", late_rank_calls(ranks=3, late=1), 3)
    shutil.rmtree(tmp_path / "job" / "rank2")
    write_trace(tmp_path / "other.json")
    (job,) = document(capsys, "report", tmp_path)["jobs"]
    assert job["integrity"]["status"] == "partial"
    assert job["integrity"]["notes"][-1]["message"] == "rank 2 missing, 2 of 3"
    assert {c["rule"]: c["status"] for c in job["checks"]}["ranks.missing"] == "found"


def test_the_page_tells_of_the_job_before_its_reports(mixed: Path, capsys: Capture) -> None:
    said = beginning(capsys, mixed, "--html", mixed / "page.html")
    words = Page((mixed / "page.html").read_text("utf-8")).words
    title = next(word for word in words if word.startswith("Recordings"))
    assert squeezed(title) == said
    names = ["a.json", "late/rank0", "late/rank1"]
    index = [f"{number}: {name}" for number, name in enumerate(names, 1)]
    titles = [f"{number} of 3: {name}" for number, name in enumerate(names, 1)]
    told = [word for word in words if word in (*index, *titles)]
    assert told == [*index, *titles]
    assert words.index(title) < words.index(index[0])


def test_a_page_of_a_job_is_inert(tmp_path: Path, capsys: Capture) -> None:
    name = "<script>alert(1)<script>\x1b[31m\u202e"
    calls = [replace(call, group=name) for call in late_rank_calls(ranks=2, late=1)]
    folder = tmp_path / "<img src=x onerror=alert(2)>"
    save_ranks(folder, calls, 2, busy={1: "gemm"})
    write_trace(tmp_path / "z.json")
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    title = next(word for word in page.words if word.startswith("Recordings"))
    assert "<script>alert(1)" in title
    assert folder.name in title


@pytest.mark.parametrize("beside", [False, True], ids=["ranks alone", "beside another"])
def test_a_page_of_ranks_runs_and_loads_nothing(
    tmp_path: Path, capsys: Capture, beside: bool
) -> None:
    shutil.copytree(RANKS / "late", tmp_path / "late")
    if beside:
        write_trace(tmp_path / "z.json")
    page = tmp_path.parent / f"{tmp_path.name}.html"
    assert main(["report", str(tmp_path), "--html", str(page)]) == 0
    capsys.readouterr()
    tags = Page(page.read_text("utf-8")).tags
    (policy,) = (a["content"] for _, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert not {key for _, attributes in tags for key in attributes} & {"src", "href", "onload"}


def test_a_gate_asks_for_what_was_found_across_ranks(mixed: Path, capsys: Capture) -> None:
    assert main(["report", str(mixed), "--fail-on", "comm.straggler"]) == 1
    assert "found comm.straggler" in capsys.readouterr().err
    shutil.rmtree(mixed / "late")
    shutil.copytree(RANKS / "symmetric", mixed / "even")
    assert main(["report", str(mixed), "--fail-on", "comm.straggler"]) == 0
    assert "comm.straggler" not in capsys.readouterr().err

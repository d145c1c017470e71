"""Several recordings as one JSON document: the report of each, and the jobs that are among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracer.analysis import Analysis
from tracer.events import Note
from tracer.exporters.json_report import SCHEMA, note_json, to_report
from tracer.exporters.ranks_json import across_json, answer_json
from tracer.rank_analysis import JobAmong
from tracer.version import VERSION

_WORST = ("complete", "partial", "unusable")


def to_reports(
    analyses: Sequence[Analysis], notes: Sequence[Note] = (), jobs: Sequence[JobAmong] = ()
) -> dict[str, Any]:
    """One document for several recordings that are not all ranks of one run. `jobs`: which of them
    are ranks of one job."""
    statuses = [analysis.integrity_status for analysis in analyses]
    statuses += ["partial" for note in notes if note.partial]
    worst = max(statuses, key=_WORST.index, default="complete")
    return {
        "schema": SCHEMA,
        "tracer": VERSION,
        "integrity": {"status": worst, "notes": [note_json(note) for note in notes]},
        "jobs": [_job(job) for job in jobs],
        "reports": [to_report(analysis) for analysis in analyses],
    }


def _job(job: JobAmong) -> dict[str, Any]:
    """What a document of its ranks says across them; `reports`: the places of their reports in
    `reports`, from 0, in the order of `summary`."""
    return {
        "reports": [number - 1 for number in job.numbers],
        "path": job.place,
        **answer_json(job.found),
        **across_json(job.found),
    }

"""Many ranks as one JSON document, written rank by rank: never held whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tracer.exporters.json_report import SCHEMA, check_json, finding_json, note_json, plain
from tracer.exporters.ranks_verdict import ranks_verdict
from tracer.rank_analysis import Alignment, KindSums, RankAnalysis, RankResult
from tracer.version import VERSION

# Gives the whole report of a rank, as JSON text; "" where there is none.
ReportOf = Callable[[int], str]


def ranks_document(analysis: RankAnalysis, report_of: ReportOf) -> dict[str, Any]:
    """The document of a few ranks, ready for `json.dumps`."""
    ranks = list(_reports(analysis, report_of))
    return {**_head(analysis), "ranks": ranks, **across_json(analysis)}


def ranks_parts(analysis: RankAnalysis, report_of: ReportOf) -> Iterator[str]:
    """The document as pieces of text, one rank at a time."""
    yield _text(_head(analysis))[:-1] + ',"ranks":['
    for place, report in enumerate(_reports(analysis, report_of)):
        yield ("," if place else "") + _text(report)
    yield "]," + _text(across_json(analysis))[1:] + "\n"


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False, separators=(",", ":"))


def _head(analysis: RankAnalysis) -> dict[str, Any]:
    return {"schema": SCHEMA, "tracer": VERSION, **answer_json(analysis)}


def answer_json(analysis: RankAnalysis) -> dict[str, Any]:
    """The answer, and whether all was there that it rests on."""
    notes = [note_json(note) for note in analysis.notes]
    return {
        "answer": ranks_verdict(analysis),
        "integrity": {"status": analysis.integrity_status, "notes": notes},
    }


def _reports(analysis: RankAnalysis, report_of: ReportOf) -> Iterator[dict[str, Any]]:
    for rank in analysis.ranks:
        text = report_of(rank.summary.rank)
        if text:
            yield with_waits(json.loads(text), rank, analysis)


def across_json(analysis: RankAnalysis) -> dict[str, Any]:
    """What was found out across the ranks."""
    return {
        "alignment": _alignment(analysis.alignment) if analysis.alignment else None,
        "groups": [
            {
                "name": group.name or None,
                "description": group.description or None,
                "kind": group.kind or None,
                "basis": group.basis or None,
                "ranks": list(group.members),
                "collectives": group.count,
                "ops": list(group.ops),
            }
            for group in analysis.groups
        ],
        "imbalance": plain(analysis.imbalance),
        "summary": [_summary(rank) for rank in analysis.ranks],
        "findings": [finding_json(finding) for finding in analysis.findings],
        "checks": [check_json(check) for check in analysis.checks],
    }


def _alignment(alignment: Alignment) -> dict[str, Any]:
    clocks = sorted(alignment.clocks.items())
    return {
        "offset_ns": {str(rank): clock.offset_ns for rank, clock in clocks},
        "drift_ratio": {str(rank): clock.drift for rank, clock in clocks},
        "reference_rank": {str(r): to for r, to in sorted(alignment.references.items())},
        "at_ns": {str(rank): clock.at_ns for rank, clock in clocks},
        "residual_ns": alignment.residual_ns,
        "residuals_ns": {str(r): ns for r, ns in sorted(alignment.residuals_ns.items())},
        "basis": alignment.basis,
        "apart": list(alignment.apart),
    }


def _summary(rank: RankResult) -> dict[str, Any]:
    return {
        "rank": rank.summary.rank,
        "path": rank.summary.path,
        "host": rank.summary.host,
        "wall_ns": rank.summary.wall_ns,
        "median_step_ns": rank.summary.median_step_ns,
        "busy_ns": rank.summary.busy_ns,
        "idle_ns": rank.summary.idle_ns,
        "exposed_ns": rank.summary.exposed_ns,
        "wait_ns": rank.wait_ns,
        "wire_ns": rank.wire_ns,
        "exposed_wait_ns": rank.exposed_wait_ns,
        "last": rank.last,
        "compared": rank.compared,
        "status": rank.summary.status,
    }


def with_waits(report: dict[str, Any], rank: RankResult, analysis: RankAnalysis) -> dict[str, Any]:
    """The report of a rank with what only the comparison could tell. Its own answer stays: what
    one rank can say."""
    report["source"]["rank"] = rank.summary.rank
    report["source"]["path"] = rank.summary.path
    communication = report.get("communication")
    if communication is not None:
        kinds = {(kind.op, kind.group): kind for kind in rank.kinds}
        for item in communication["collectives"]:
            kind = kinds.get((item["op"], item["group"] or ""))
            if kind is not None:
                item.update(_waited(kind))
        communication["wait_ns"] = rank.wait_ns
        communication["wire_ns"] = rank.wire_ns
        communication["exposed_wait_ns"] = rank.exposed_wait_ns
    report["findings"] = [finding_json(finding) for finding in rank.findings]
    told = {check.rule: check for check in (*analysis.checks, *rank.checks)}
    for check in report["checks"]:
        if check["rule"] in told:
            check.update(check_json(told[check["rule"]]))
    return report


def _waited(kind: KindSums) -> dict[str, Any]:
    return {
        "wait_ns": kind.wait_ns,
        "wire_ns": kind.wire_ns,
        "exposed_wait_ns": kind.exposed_wait_ns,
        "median_wire_ns": kind.median_wire_ns,
        "compared": kind.compared,
        "algbw_bytes_per_s": plain(kind.algbw_bytes_per_s),
        "busbw_bytes_per_s": plain(kind.busbw_bytes_per_s),
    }

"""`tracer export`: send a recording to a viewer, or write it in another format."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.commands.output import say, write_report
from tracer.errors import UsageError
from tracer.held_ranks import split_rank

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.exporters.otlp.export import Content, Delivery
    from tracer.exporters.otlp.options import Arguments
    from tracer.exporters.otlp.report import DeliveryReport
    from tracer.rank_analysis import RankAnalysis

NAME = "export"
HELP = "send a recording to Jaeger (otlp), or write it for Perfetto or as Parquet tables"

NOT_WHOLE, DAMAGED_INPUT = 1, 4
_EPILOG = """\
examples:
  tracer export runs/a --to otlp --endpoint http://localhost:4317
  tracer export trace.json.gz --to otlp --endpoint https://host/v1/traces --header authorization=...
  tracer export runs/a --to otlp --traceparent 00-<trace id>-<span id>-01    below that request
  tracer export tracer-undelivered-1a2b.otlp --to otlp       send what was not delivered before
  tracer export runs/a --to otlp --out spans.json            a file for Jaeger's upload
  tracer export runs/a --to perfetto --out timeline.json.gz  open it at ui.perfetto.dev
  tracer export runs/a --to parquet --out tables

What options leave open, the OTEL_EXPORTER_OTLP_... variables, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES and TRACEPARENT say. A delivery ends within its deadline: 10 s, and 10 s
more for each further 100,000 spans. Exit status: 0 all was taken, 1 not all (what was not
delivered is kept in a file)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tracer export`."""
    parser.epilog = _EPILOG
    parser.add_argument("paths", nargs="+", metavar="PATH", help="recordings, or a file of spans")
    parser.add_argument("--to", required=True, choices=("otlp", "perfetto", "parquet"))
    parser.add_argument("--out", metavar="PATH", help="file or directory to write")
    parser.add_argument("--json", action="store_true", help="say as JSON what was delivered")
    _add_target(parser.add_argument_group("receiver (otlp)"))
    _add_content(parser.add_argument_group("spans (otlp)"))


def _add_target(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--endpoint", metavar="URL", help="http(s)://host:port[/path]")
    group.add_argument("--protocol", choices=("grpc", "http/protobuf"))
    group.add_argument("--header", action="append", default=[], metavar="KEY=VALUE")
    group.add_argument("--certificate", metavar="FILE", help="trusted certificates (PEM)")
    group.add_argument("--client-certificate", metavar="FILE")
    group.add_argument("--client-key", metavar="FILE")
    group.add_argument("--insecure", action="store_true", default=None, help="no TLS without https")
    group.add_argument("--compression", choices=("gzip", "none"))
    group.add_argument("--timeout", type=float, metavar="S", help="seconds for one request (5)")
    group.add_argument("--deadline", type=float, metavar="S", help="seconds for all of it")
    group.add_argument("--keep", metavar="PATH", help="where to keep what is not delivered")


def _add_content(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--detail", choices=("folded", "kernels"), default="folded", help="kernels: a span for each"
    )
    group.add_argument("--max-spans", type=int, metavar="N", help="most spans when folded (4000)")
    group.add_argument("--traceparent", metavar="TEXT", help="the request that caused this run")
    group.add_argument(
        "--link",
        action="append",
        default=[],
        metavar="TRACEPARENT",
        help="a request that the steps served, when there are several",
    )
    group.add_argument("--service-name", metavar="NAME")
    group.add_argument("--resource", action="append", default=[], metavar="KEY=VALUE")
    group.add_argument("--metrics", action="store_true", help="also send metrics")


def run(args: argparse.Namespace) -> int:
    """Export each path; returns the exit status."""
    _check_options(args)
    files = [Path(path) for path in args.paths if _is_span_file(path)]
    others = [path for path in args.paths if Path(path) not in files]
    if files:
        return _resend(args, files, others)
    analyses, damaged = _open(others)
    if args.to == "perfetto":
        _perfetto(analyses, _out(args, others, ".perfetto.json"))
        return DAMAGED_INPUT if damaged else 0
    if args.to == "parquet":
        _parquet(analyses, _out(args, others, "-tables"))
        return DAMAGED_INPUT if damaged else 0
    whole = _write_spans(args, analyses) if args.out else _send(args, analyses)
    return _status(whole, damaged)


def _check_options(args: argparse.Namespace) -> None:
    if args.to != "otlp" and (args.endpoint or args.header or args.metrics or args.traceparent):
        raise UsageError(f"--to {args.to} writes a file: receiver options belong to --to otlp")
    if args.to == "otlp" and args.out and args.endpoint:
        raise UsageError("give --endpoint to send the spans, or --out to write them to a file")
    if args.to == "otlp":
        from tracer.exporters.otlp.export import check

        check(_arguments(args), _content(args), _delivery(args))


def _is_span_file(path: str) -> bool:
    from tracer.exporters.otlp.undelivered import is_otlp_file

    return is_otlp_file(Path(path))


def _open(paths: Sequence[str]) -> tuple[list[Analysis], bool]:
    """Analyses of everything at these paths, and whether some of it was damaged."""
    from tracer.commands.report import open_all

    opened = open_all(paths)
    partial = any(analysis.damaged for analysis in opened.analyses)
    return list(opened.analyses), partial or bool(opened.failures)


def _status(whole: bool, damaged: bool) -> int:
    if not whole:
        return NOT_WHOLE
    return DAMAGED_INPUT if damaged else 0


def _out(args: argparse.Namespace, paths: Sequence[str], suffix: str) -> Path:
    """Where to write; without `--out` a name after the first path, in the working directory."""
    if args.out:
        return Path(args.out)
    file, rank = split_rank(paths[0])
    name = file.resolve().name.partition(".")[0] or "trace"
    return Path(f"{name}{'' if rank is None else f'.rank{rank}'}{suffix}")


def _perfetto(analyses: Sequence[Analysis], out: Path) -> None:
    from tracer.exporters.perfetto import write_perfetto

    write_perfetto(analyses, out)
    write_report(f"wrote {out}\n")


def _parquet(analyses: Sequence[Analysis], out: Path) -> None:
    from tracer.exporters.parquet import write_parquet

    for analysis, place in zip(analyses, _places(analyses, out), strict=True):
        for path in write_parquet(analysis, place):
            write_report(f"wrote {path}\n")


def _places(analyses: Sequence[Analysis], out: Path) -> Iterator[Path]:
    """`out` for one recording; for several a directory each, named after rank or number."""
    if len(analyses) == 1:
        yield out
        return
    if out.suffix == ".parquet":
        raise UsageError(f"--out {out}: several recordings need a directory")
    for number, analysis in enumerate(analyses):
        rank = analysis.trace.meta.rank
        yield out / (f"{number}" if rank is None else f"rank-{rank}")


# otlp -----------------------------------------------------------------------------------------


def _arguments(args: argparse.Namespace) -> Arguments:
    from tracer.exporters.otlp.options import Arguments

    return Arguments(
        endpoint=args.endpoint,
        protocol=args.protocol,
        headers=_pairs(args.header, "--header") or None,
        certificate=args.certificate,
        client_key=args.client_key,
        client_certificate=args.client_certificate,
        insecure=args.insecure,
        compression=args.compression,
        timeout=args.timeout,
    )


def _pairs(items: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{option}: write KEY=VALUE")
        pairs[key] = value
    return pairs


def _content(args: argparse.Namespace) -> Content:
    from tracer.exporters.otlp.export import Content
    from tracer.exporters.otlp.layout import DEFAULT_MAX_SPANS

    return Content(
        detail=args.detail,
        max_spans=DEFAULT_MAX_SPANS if args.max_spans is None else args.max_spans,
        traceparent=args.traceparent,
        links=args.link,
        service_name=args.service_name,
        resource=_pairs(args.resource, "--resource"),
        metrics=args.metrics,
    )


def _delivery(args: argparse.Namespace) -> Delivery:
    from tracer.exporters.otlp.export import Delivery

    return Delivery(deadline=args.deadline, keep=args.keep)


def _send(args: argparse.Namespace, analyses: Sequence[Analysis]) -> bool:
    from tracer.exporters.otlp.export import send_analyses

    content, across = _content(args), _across(analyses)
    report = send_analyses(analyses, _arguments(args), content, _delivery(args), across=across)
    return _tell(args, report)


def _across(analyses: Sequence[Analysis]) -> RankAnalysis | None:
    """What was found out across the recordings, where they are ranks of one run."""
    from tracer.exporters.otlp.export import ranks_of_one_run
    from tracer.ranks.among import compare_all

    if len(analyses) < 2 or not ranks_of_one_run(analyses):
        return None
    ranks = {analysis.trace.meta.rank: analysis for analysis in analyses}
    return compare_all({rank: ranks[rank] for rank in sorted(r for r in ranks if r is not None)})


def _resend(args: argparse.Namespace, files: Sequence[Path], others: Sequence[str]) -> int:
    """Send files of spans as they are."""
    from tracer.exporters.otlp.export import send_file

    if others or args.to != "otlp" or args.out:
        raise UsageError(f"{files[0]} holds spans: it can be sent with --to otlp, on its own")
    whole = True
    for path in files:
        # A file that cannot be delivered must not keep the next one from being tried.
        whole = _tell(args, send_file(path, _arguments(args), _delivery(args))) and whole
    return _status(whole, damaged=False)


def _tell(args: argparse.Namespace, report: DeliveryReport) -> bool:
    text = json.dumps(report.to_json()) if args.json else report.text()
    write_report(text + "\n")
    if not report.complete:
        say(f"not all was delivered to {report.endpoint}: {_reason(report)}")
    return report.complete


def _reason(report: DeliveryReport) -> str:
    return (report.reasons or (report.metrics_failure or "no reason given",))[0]


def _write_spans(args: argparse.Namespace, analyses: Sequence[Analysis]) -> bool:
    from tracer.exporters.otlp.document import write_document
    from tracer.exporters.otlp.export import plan_recordings

    recordings = plan_recordings(analyses, _content(args), across=_across(analyses))
    path = Path(args.out)
    spans = write_document((b for r in recordings for b in r.batches()), path)
    write_report(f"wrote {spans:,} spans to {path}\n")
    return True

"""Spans of a recording, as blocks of columns: run or request, step, block, kernels.

Every name of ours begins with `tracer.`; `gen_ai.*` stands on request spans only, since a viewer
takes any span that has it for a model call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis import BUCKETS, Analysis
from tracer.exporters.otlp import ids
from tracer.exporters.otlp import protobuf as pb
from tracer.exporters.otlp.cells import Ints, Sums
from tracer.exporters.otlp.context import Context
from tracer.exporters.otlp.describe import (
    KernelFacts,
    StepFacts,
    Values,
    bucket_values,
    finding_events,
    pause_name,
    run_attributes,
    run_name,
    where_values,
)
from tracer.exporters.otlp.layout import Layout, Nodes, step_extents
from tracer.exporters.otlp.names import bucket_name
from tracer.exporters.otlp.requests import Request, requests_of_steps
from tracer.exporters.otlp.wire import Ids, SpanBlock

LOCAL_PARENT, REMOTE_PARENT, ROOT = 0x101, 0x300, 0x001
_FOLDING: Mapping[str, str] = {
    "kernels": "nothing",
    "layers": "kernels of one name in one block of one step are one span",
    "blocks": "layers alike are one block; kernels of one name in it are one span a step",
    "steps": "layers alike are one block; kernels of one name are one span for all steps",
    "run": "kernels of one name are one span for all steps",
    "ranges": "steps are gathered; kernels of one name are one span for all steps",
}


@dataclass(frozen=True)
class Place:
    """Where the spans of one recording belong. `parent` is somebody else's span, `root` ours."""

    trace_id: bytes
    recording: str  # tells the spans of this recording from those of other ranks in the trace
    parent: Context | None = None
    root: int | None = None
    links: tuple[Context, ...] = ()

    def ids(self, scope: str, numbers: Ints) -> Ids:
        """Ids of the spans of a kind."""
        return ids.span_ids(self.trace_id, f"{self.recording}/{scope}", numbers)

    def id(self, scope: str, number: int = 0) -> int:
        """One of them."""
        return ids.span_id(self.trace_id, f"{self.recording}/{scope}", number)


@dataclass(frozen=True)
class SpanMaker:
    """What the spans of one recording are made from."""

    analysis: Analysis
    layout: Layout
    place: Place
    requests: tuple[Request, ...] = ()

    @property
    def count(self) -> int:
        """Spans in all."""
        return self.layout.count + sum(1 + len(r.stages) for r in self.requests)

    def level(self, name: str) -> Values:
        """Attributes that every span has."""
        return {"tracer.level": name, "tracer.rank": self.analysis.trace.meta.rank}

    def node_ids(self, scope: str, nodes: Nodes) -> Ids:
        """Ids of the nodes of a level of the tree; they differ between levels of detail."""
        return self.place.ids(f"{scope}/{self.layout.level}", np.arange(len(nodes)))

    def step_ids(self) -> Ids:
        """Ids of the step spans: the same in every detail, where they are the same spans."""
        scope = "steps" if self.layout.level == "ranges" else "step"
        return self.place.ids(scope, self.layout.steps.first)

    def ids_of_steps(self, step: Ints) -> Ids:
        """Span ids of step nodes; -1 is the time outside steps, RUN (-2) the run."""
        others = np.array([self.place.id("run"), self.place.id("outside")], dtype=np.uint64)
        return np.append(self.step_ids(), others)[step]


def make_spans(maker: SpanMaker) -> Iterator[SpanBlock]:
    """All spans of a recording, parents first."""
    layout = maker.layout
    yield _run(maker)
    yield from _requests(maker)
    if len(layout.steps):
        yield _steps(maker)
    if layout.outside:
        yield _outside(maker)
    if layout.directions is not None:
        yield _directions(maker, layout.directions)
    if layout.step_blocks is not None:
        yield _step_blocks(maker, layout.step_blocks)
    if layout.leaf_parents is not None:
        yield _summaries(maker, layout.leaf_parents)
    if layout.leaves is not None:
        yield _leaves(maker, layout.leaves)
    if len(layout.idle):
        yield _idle(maker)
    if len(layout.pauses):
        yield _pauses(maker)
    if len(layout.whole):
        yield _kernels(maker)


# run, requests, steps -------------------------------------------------------------------------


def _run(maker: SpanMaker) -> SpanBlock:
    analysis, place = maker.analysis, maker.place
    flags, above = parent_of(place.parent, place.root)
    events, left_out = finding_events(analysis)
    template = pb.span_template(
        run_name(analysis),
        {**maker.level("run"), **run_attributes(analysis), **_folding(maker)},
        flags=flags,
        trace_state=place.parent.state if place.parent is not None else "",
        extra=[*events, pb.dropped_events(left_out), *_links(place.links)],
    )
    window = analysis.window
    return single(template, place.id("run"), above, window.start_ns, window.end_ns)


def parent_of(parent: Context | None, root: int | None) -> tuple[int, int | None]:
    """Flags and parent id of a span below somebody else's span, below ours, or below none."""
    if parent is not None:
        return REMOTE_PARENT | parent.flags & 0xFF, int.from_bytes(parent.span_id, "big")
    return (ROOT, None) if root is None else (LOCAL_PARENT, root)


def _folding(maker: SpanMaker) -> Values:
    """What a reader of the run span must know about what is not a span of its own."""
    layout = maker.layout
    return {
        "tracer.detail": layout.level,
        "tracer.spans": maker.count,
        "tracer.folded.kernels": len(layout.cells.work_rows) - len(layout.whole),
        "tracer.folded.into": 0 if layout.leaves is None else len(layout.leaves),
        "tracer.folded.steps": len(maker.analysis.steps) - len(layout.steps),
        "tracer.folded.how": _FOLDING[layout.level],
    }


def _links(contexts: Sequence[Context]) -> list[bytes]:
    return [pb.link(c.trace_id, c.span_id, {}, REMOTE_PARENT | c.flags & 0xFF) for c in contexts]


def _requests(maker: SpanMaker) -> Iterator[SpanBlock]:
    place = maker.place
    for index, request in enumerate(maker.requests):
        mine = place.id("request", index)
        template = pb.span_template(
            request.name,
            {**maker.level("request"), **request.attributes()},
            extra=_links([request.context] if request.context else []),
        )
        yield single(template, mine, place.id("run"), request.start_ns, request.end_ns)
        for number, stage in enumerate(request.stages):
            values = maker.level("stage") | {"tracer.request.id": request.id}
            made = pb.span_template(stage.name, values)
            stage_id = place.id(f"stage/{index}", number)
            yield single(made, stage_id, mine, stage.start_ns, stage.end_ns)


def _steps(maker: SpanMaker) -> SpanBlock:
    """Steps; below the request when a step served only one, else linked to all it served."""
    steps, place = maker.layout.steps, maker.place
    facts, (start, end) = StepFacts(maker.analysis), step_extents(maker.analysis, steps)
    extents = list(zip(start.tolist(), end.tolist(), strict=True))
    served = requests_of_steps(maker.requests, extents)
    run = place.id("run")
    parents = [place.id("request", rows[0]) if len(rows) == 1 else run for rows in served]
    return SpanBlock(
        [_step_template(maker, facts, node, rows) for node, rows in enumerate(served)],
        np.arange(len(steps)),
        maker.step_ids(),
        np.array(parents, dtype=np.uint64),
        start,
        end,
        {"tracer.duration_ns": end - start},
    )


def _step_template(maker: SpanMaker, facts: StepFacts, node: int, served: Sequence[int]) -> bytes:
    steps = maker.layout.steps
    first, count = int(steps.first[node]), int(steps.count[node])
    phase = facts.phase(first)
    name = f"{phase} step" if phase else "step"
    links = list(maker.place.links)
    if len(served) > 1:
        links += [_request_context(maker, row) for row in served]
    return pb.span_template(
        name if count == 1 else f"{name}s",
        {
            **maker.level("step"),
            "tracer.phase": phase or None,
            **facts.values(first, count),
        },
        extra=_links(links),
    )


def _request_context(maker: SpanMaker, row: int) -> Context:
    """The context of the caller's request, or else of our own span of it."""
    mine = maker.place.id("request", row).to_bytes(8, "big")
    return maker.requests[row].context or Context(maker.place.trace_id, mine)


def _outside(maker: SpanMaker) -> SpanBlock:
    """The time between steps, and work that belongs to none."""
    layout, window, place = maker.layout, maker.analysis.window, maker.place
    mine = np.flatnonzero(layout.step_of_cell == -1)
    sums = layout.cells.sums
    start = min([window.start_ns, *sums.first_ns[mine].tolist()])
    end = max([window.end_ns, *sums.last_ns[mine].tolist()])
    values = {**maker.level("outside"), "tracer.count": int(sums.count[mine].sum())}
    template = pb.span_template("outside steps", values)
    return single(template, place.id("outside"), place.id("run"), start, end)


# blocks ---------------------------------------------------------------------------------------


def _directions(maker: SpanMaker, nodes: Nodes) -> SpanBlock:
    """Forward, backward and the like inside the steps of a training."""
    layout, first = maker.layout, nodes.groups.first
    made = _templates(layout.cells.direction[first], lambda code: _direction_template(maker, code))
    parents = maker.ids_of_steps(layout.step_of_cell[first])
    return _summed(made, maker.node_ids("phase", nodes), parents, nodes.sums)


def _direction_template(maker: SpanMaker, code: int) -> bytes:
    name = maker.layout.cells.directions[code] or "undirected"
    return pb.span_template(name, {**maker.level("phase"), "tracer.phase": name})


def _step_blocks(maker: SpanMaker, nodes: Nodes) -> SpanBlock:
    layout, first, above = maker.layout, nodes.groups.first, maker.layout.directions
    if above is None:
        parents = maker.ids_of_steps(layout.step_of_cell[first])
    else:
        parents = maker.node_ids("phase", above)[above.groups.of_row[first]]
    made = _templates(layout.block_of_cell[first], lambda code: _block_template(maker, code))
    return _summed(made, maker.node_ids("block", nodes), parents, nodes.sums)


def _block_template(maker: SpanMaker, code: int) -> bytes:
    if code < len(BUCKETS):
        values = {**maker.level("block"), **bucket_values(code)}
        return pb.span_template(bucket_name(code), values)
    blocks = maker.layout.blocks
    row = maker.analysis.modules.iloc[int(blocks.module[code - len(BUCKETS)])]
    path = blocks.names[code - len(BUCKETS)]
    values = {
        **maker.level("block"),
        "tracer.module": path,
        "tracer.module.type": str(row["type"]) or None,
        "tracer.module.role": str(row["role"]) or None,
    }
    return pb.span_template(path, values)


def _summaries(maker: SpanMaker, nodes: Nodes) -> SpanBlock:
    """On the run: one span for each bucket, over all steps."""
    kinds = maker.layout.cells.kinds
    buckets = kinds.bucket[maker.layout.cells.kind[nodes.groups.first]]
    made = _templates(buckets, lambda code: _summary_template(maker, code))
    run = np.full(len(nodes), maker.place.id("run"), dtype=np.uint64)
    return _summed(made, maker.node_ids("summary", nodes), run, nodes.sums)


def _summary_template(maker: SpanMaker, code: int) -> bytes:
    values = {**maker.level("block"), **bucket_values(code)}
    return pb.span_template(f"all steps: {bucket_name(code)}", values)


# kernels --------------------------------------------------------------------------------------


def _leaves(maker: SpanMaker, nodes: Nodes) -> SpanBlock:
    """Kernels of one name as one span."""
    layout, first = maker.layout, nodes.groups.first
    scope = "block" if layout.leaf_parents is None else "summary"
    holders = _holders(layout.leaf_parents or layout.step_blocks)
    parents = maker.node_ids(scope, holders)[holders.groups.of_row[first]]
    names = _names_in_leaves(layout, nodes).tolist()
    kinds = layout.cells.kind[first].tolist()
    facts = KernelFacts(maker.analysis, layout.cells)
    templates = [
        _leaf_template(maker, facts, kind, alike) for kind, alike in zip(kinds, names, strict=True)
    ]
    made = (templates, np.arange(len(templates)))
    return _summed(made, maker.node_ids("leaf", nodes), parents, nodes.sums)


def _holders(nodes: Nodes | None) -> Nodes:
    assert nodes is not None  # a layout with kernels has spans that they belong to
    return nodes


def _names_in_leaves(layout: Layout, leaves: Nodes) -> Ints:
    """How many kernels' names each leaf stands for: more than one in a folded tail."""
    cells = layout.cells
    pairs = np.unique(np.stack([leaves.groups.of_row, cells.kinds.name[cells.kind]]), axis=1)
    return np.bincount(pairs[0], minlength=len(leaves)).astype(np.int64)


def _leaf_template(maker: SpanMaker, facts: KernelFacts, kind: int, names: int) -> bytes:
    if names > 1:
        bucket = int(maker.layout.cells.kinds.bucket[kind])
        values = {**maker.level("kernels"), **bucket_values(bucket), "tracer.names": names}
        return pb.span_template("other kernels", values)
    name, known = facts.of_kind(kind, with_module=False)
    return pb.span_template(name, {**maker.level("kernels"), **known})


def _kernels(maker: SpanMaker) -> SpanBlock:
    """Kernels that are spans of their own."""
    layout, cells, analysis = maker.layout, maker.layout.cells, maker.analysis
    rows = cells.work_rows[layout.whole]
    event = analysis.work["event"].to_numpy()[rows]
    cell = cells.cell_of_work[layout.whole]
    scope = "leaf" if layout.leaves is not None else "block"
    holders = _holders(layout.leaves or layout.step_blocks)
    kinds, template = np.unique(cells.kind[cell], return_inverse=True)
    start, end = analysis.trace.start_ns[event], analysis.trace.end_ns[event]
    return SpanBlock(
        _kernel_templates(maker, kinds.tolist()),
        template,
        maker.place.ids("kernel", event),
        maker.node_ids(scope, holders)[holders.groups.of_row[cell]],
        start,
        end,
        {
            "tracer.duration_ns": end - start,
            "tracer.charged_ns": analysis.work["charged_ns"].to_numpy()[rows],
            "tracer.correlation": analysis.trace.events["correlation"].to_numpy()[event],
            "tracer.step": analysis.work["step"].to_numpy()[rows],
        },
    )


def _kernel_templates(maker: SpanMaker, kinds: list[int]) -> list[bytes]:
    facts = KernelFacts(maker.analysis, maker.layout.cells)
    made = [facts.of_kind(kind, with_module=True) for kind in kinds]
    return [pb.span_template(name, {**maker.level("kernel"), **known}) for name, known in made]


def _idle(maker: SpanMaker) -> SpanBlock:
    """Idle time by cause."""
    idle = maker.layout.idle
    templates, template = _templates(idle.bucket, lambda code: _idle_template(maker, code))
    return SpanBlock(
        templates,
        template,
        _idle_ids(maker),
        maker.ids_of_steps(idle.step),
        idle.first_ns,
        idle.last_ns,
        {
            "tracer.duration_ns": idle.last_ns - idle.first_ns,
            "tracer.count": idle.count,
            "tracer.total_ns": idle.ns,
            "tracer.charged_ns": idle.ns,
        },
    )


def _idle_ids(maker: SpanMaker) -> Ids:
    return maker.place.ids(f"idle/{maker.layout.level}", np.arange(len(maker.layout.idle)))


def _idle_template(maker: SpanMaker, code: int) -> bytes:
    values = {**maker.level("idle"), **bucket_values(code)}
    return pb.span_template(f"idle: {BUCKETS[code][1]}", values)


def _pauses(maker: SpanMaker) -> SpanBlock:
    """Of the idle time, each pause that a finding names, with the place that takes it."""
    gaps, pauses = maker.analysis.gaps, maker.layout.pauses
    start, end = (gaps[name].to_numpy()[pauses.row] for name in ("start_ns", "end_ns"))
    code = maker.layout.idle.bucket[pauses.idle]
    kinds = pauses.finding * len(BUCKETS) + code
    templates, template = _templates(
        kinds, lambda kind: _pause_template(maker, *divmod(kind, len(BUCKETS)))
    )
    return SpanBlock(
        templates,
        template,
        maker.place.ids("pause", pauses.row),
        _idle_ids(maker)[pauses.idle],
        start,
        end,
        {
            "tracer.duration_ns": end - start,
            "tracer.step": gaps["step"].to_numpy()[pauses.row],
        },
    )


def _pause_template(maker: SpanMaker, number: int, code: int) -> bytes:
    finding = maker.analysis.findings[number]
    told = {"tracer.finding.rule": finding.rule, "tracer.finding.title": finding.title}
    values = {**maker.level("pause"), **bucket_values(code), **told, **where_values(finding.where)}
    return pb.span_template(pause_name(finding), values)


def _templates(codes: Ints, make: Callable[[int], bytes]) -> tuple[list[bytes], Ints]:
    """The template of each code, made once, and where each row's is among them."""
    distinct, place = np.unique(codes, return_inverse=True)
    return [make(code) for code in distinct.tolist()], place


def single(
    template: bytes, span_id: int, parent: int | None, start_ns: int, end_ns: int
) -> SpanBlock:
    """A block of one span."""
    start, end = np.array([start_ns], dtype=np.int64), np.array([end_ns], dtype=np.int64)
    return SpanBlock(
        [template],
        np.zeros(1, dtype=np.int64),
        np.array([span_id], dtype=np.uint64),
        None if parent is None else np.array([parent], dtype=np.uint64),
        start,
        end,
        {"tracer.duration_ns": end - start},
    )


def _summed(
    made: tuple[Sequence[bytes], Ints], span_ids: Ids, parents: Ids, sums: Sums
) -> SpanBlock:
    """Spans that stand for several pieces of work, from the first start to the last end."""
    templates, template = made
    return SpanBlock(
        templates,
        template,
        span_ids,
        parents,
        sums.first_ns,
        sums.last_ns,
        {
            "tracer.duration_ns": sums.last_ns - sums.first_ns,
            "tracer.count": sums.count,
            "tracer.total_ns": sums.total_ns,
            "tracer.charged_ns": sums.charged_ns,
            "tracer.longest_ns": sums.longest_ns,
        },
    )

"""Whether two recordings can be compared: what they do not have in common, in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tracer.analysis import Analysis
from tracer.analyzers.diff.programs import are_other_programs
from tracer.analyzers.diff.steps import both_loop, has_steps, source_of
from tracer.diff_analysis import Difference, PhaseChange

# Models with parameters that differ by more are others: an adapter adds fewer.
_PARAMETERS_RATIO = 0.1
# What is told of a model and is no part of which model it is: its class may be a wrapper's.
_STATE = frozenset(("type", "parameter_bytes", "training"))
# Steps whose sizes differ by less are alike: those of an engine are never quite the same.
_SIZE_RATIO = 0.05
# The profiler made one recording slower than the other from this ratio on.
_INFLATION_RATIO = 1.05
# What the recorder can take in besides, and whether that slows the host notably.
_RECORDED: Mapping[str, tuple[str, bool]] = {
    "stacks": ("Python frames", True),
    "shapes": ("shapes", True),
    "memory": ("allocations", True),
    "modules": ("ranges of modules", False),
}
# Settings of a run, as `facts` names them.
_SETTINGS: Mapping[str, str] = {
    "attention_implementation": "attention implementation",
    "attention_ran": "attention that ran",
    "dtypes": "weights",
    "quantization": "quantization",
    "compile_mode": "compile mode",
    "engine": "engine",
    "fp32_products": "fp32 products",
}
_STEP_SOURCES: Mapping[str, str] = {
    "announced": "announced by the program",
    "profiler_step": "ProfilerStep ranges",
    "engine": "ranges of the engine",
    "annotation": "repeated ranges",
    "root_call": "calls of the model",
    "graph": "replays of a graph",
}
_Facts = Mapping[str, Any]


def find_differences(
    before: Analysis, after: Analysis, phases: tuple[PhaseChange, ...]
) -> tuple[Difference, ...]:
    """All that A and B do not have in common, what stands against the comparison first."""
    found = [d for check in _CHECKS for d in check(before, after)]
    told = any(difference.rule == "diff.model" for difference in found)
    other = any(are_other_programs(before, after, phase) for phase in phases[:1])
    found += [_OTHER_PROGRAMS] if other and not told else []
    found += [d for phase in phases for d in (*_sizes(phase), *_other_kernels(phase))]
    return tuple(sorted(found, key=lambda difference: not difference.breaks))


def _models(before: Analysis, after: Analysis) -> Iterator[Difference]:
    ours, theirs = _model_facts(before), _model_facts(after)
    same = ours.keys() & theirs.keys()
    if "parameters" in same:  # layers of another class with as many of them may be the change
        same -= {"layer_class"}
    differing = [key for key in ours if key in same and not _alike(key, ours[key], theirs[key])]
    if differing:
        words = [f"{k.replace('_', ' ')} {ours[k]} in A, {theirs[k]} in B" for k in differing]
        told = "; ".join(words)
        mine, other = ({key: facts[key] for key in differing} for facts in (ours, theirs))
        yield Difference("diff.model", f"different models: {told}", mine, other)


def _alike(key: str, ours: Any, theirs: Any) -> bool:
    if key == "parameters":
        return bool(abs(ours - theirs) <= _PARAMETERS_RATIO * max(ours, theirs))
    return bool(ours == theirs)


def _model_facts(analysis: Analysis) -> dict[str, Any]:
    """What tells one model from another: its numbers, where the recorder saw it; the layers."""
    facts, modules = analysis.facts, analysis.modules
    models = [model for model in facts.get("models") or () if model.get("parameters")]
    known: dict[str, Any] = {}
    if models:
        largest = max(models, key=lambda model: int(model["parameters"]))
        known = {key: value for key, value in largest.items() if key not in _STATE}
    layers = modules[(modules["role"] == "layer").to_numpy()]
    if len(layers):
        known["layers"] = len(layers)
        if named := sorted(set(layers["type"].astype(str)) - {""}):
            known["layer_class"] = ", ".join(named)
    elif facts.get("layers"):
        known["layers"] = int(facts["layers"])
    return known


def _devices(before: Analysis, after: Analysis) -> Iterator[Difference]:
    if before.cpu_only != after.cpu_only:
        where = {True: "without a GPU", False: "on a GPU"}
        ran = where[before.cpu_only], where[after.cpu_only]
        yield Difference("diff.device", f"A ran {ran[0]}, B {ran[1]}", ran[0], ran[1])
        return
    names = _device_names(before), _device_names(after)
    if all(names) and names[0] != names[1]:
        yield Difference("diff.device", f"A ran on {names[0]}, B on {names[1]}", *names)
    counts = before.window.devices, after.window.devices
    if counts[0] != counts[1]:
        said = f"A ran on {_counted(counts[0], 'device')}, B on {_counted(counts[1], 'device')}"
        yield Difference("diff.device_count", said, *counts)


def _device_names(analysis: Analysis) -> str:
    devices = analysis.trace.table("devices")
    worked = set(analysis.work["device"].unique().tolist())
    rows = zip(devices["device"].tolist(), devices["name"].astype(str).tolist(), strict=True)
    return ", ".join(sorted({name for device, name in rows if device in worked and name}))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _details(before: Analysis, after: Analysis) -> Iterator[Difference]:
    """Recording more makes the host slower."""
    details = before.trace.meta.detail, after.trace.meta.detail
    if all(details) and details[0] != details[1]:
        said = f"A was recorded at detail {details[0]}, B at {details[1]}"
        yield Difference("diff.detail", f"{said}: recording more makes the host slower", *details)
        return
    recorded = before.trace.meta.recorded, after.trace.meta.recorded
    for what, (words, slows) in _RECORDED.items():
        has = bool(recorded[0].get(what)), bool(recorded[1].get(what))
        if has[0] != has[1] and all(what in known for known in recorded):
            one = "A" if has[0] else "B"
            said = f"only {one} was recorded with {words}"
            said += ": that makes its host slower" if slows else ""
            yield Difference("diff.detail", said, has[0], has[1], slows)


def _inflation(before: Analysis, after: Analysis) -> Iterator[Difference]:
    """How much the profiler slowed either, as far as it is known."""
    ratios = [a.observer.inflation_ratio if a.observer else None for a in (before, after)]
    one, other = ratios
    if one is not None and other is not None:
        if max(one, other) > _INFLATION_RATIO * min(one, other):
            said = f"the profiler made the steps of A {one:.2f} times as long, those of B "
            yield Difference("diff.inflation", f"{said}{other:.2f} times", one, other)
    elif one is not None or other is not None:
        known, ratio = ("A", one) if one is not None else ("B", other)
        said = f"the profiler made the steps of {known} {ratio:.2f} times as long; of "
        said += f"{'B' if known == 'A' else 'A'} that was not measured"
        yield Difference("diff.inflation", said, one, other, breaks=False)


def _ranks(before: Analysis, after: Analysis) -> Iterator[Difference]:
    metas = before.trace.meta, after.trace.meta
    worlds = metas[0].world_size or 1, metas[1].world_size or 1
    if worlds[0] != worlds[1]:
        said = f"A is of a run of {_counted(worlds[0], 'rank')}, B of {worlds[1]}"
        yield Difference("diff.world_size", said, *worlds)
    ranks = metas[0].rank or 0, metas[1].rank or 0
    if max(worlds) > 1 and ranks[0] != ranks[1]:
        yield Difference("diff.rank", f"A is rank {ranks[0]}, B rank {ranks[1]}", *ranks)


def _step_sources(before: Analysis, after: Analysis) -> Iterator[Difference]:
    if not has_steps(before) and not has_steps(after):
        said = "no steps were found: the whole recordings are compared, which is like with like "
        said += "only where both hold the same work"
        yield Difference("diff.steps", said, None, None, breaks=False)
        return
    sources = source_of(before), source_of(after)
    one, other = (_STEP_SOURCES.get(source or "", "not found") for source in sources)
    if sources[0] != sources[1]:
        said = f"the steps of A are {one}, those of B {other}: they may begin and end elsewhere"
        if None in sources:
            alone = "A" if sources[0] is None else "B"
            said = f"no steps were found in {alone}: the whole recordings are compared"
        alike = both_loop(before, after)
        said += ", from start to start they are alike" if alike else ""
        yield Difference("diff.steps", said, *sources, breaks=not alike)


def _damage(before: Analysis, after: Analysis) -> Iterator[Difference]:
    damaged = before.damaged, after.damaged
    if any(damaged):
        which = "A and B are" if all(damaged) else "A is" if damaged[0] else "B is"
        yield Difference("diff.integrity", f"{which} damaged, cut or incomplete", *damaged)
    for name, analysis in (("A", before), ("B", after)):
        if not analysis.accounted:
            said = f"what the time of {name} went to is not known: {analysis.breakdown_reason}"
            accounted = before.accounted, after.accounted
            yield Difference("diff.breakdown", said, *accounted, breaks=False)


def _settings(before: Analysis, after: Analysis) -> Iterator[Difference]:
    """What may be just what was changed."""
    for key, words in _SETTINGS.items():
        ours, theirs = _named(before.facts, key), _named(after.facts, key)
        if ours and theirs and ours != theirs:
            said = f"{words}: {ours} in A, {theirs} in B"
            yield Difference("diff.setting", said, ours, theirs, breaks=False)
    for key, (ours, theirs) in _versions(before.facts, after.facts).items():
        said = f"{key} {ours} in A, {theirs} in B"
        yield Difference("diff.version", said, ours, theirs, breaks=False)


def _named(facts: _Facts, key: str) -> str:
    value = facts.get(key)
    if isinstance(value, Mapping):
        return ", ".join(sorted(map(str, value)))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value) if value else ""


def _versions(ours: _Facts, theirs: _Facts) -> dict[str, tuple[str, str]]:
    one, other = ours.get("versions") or {}, theirs.get("versions") or {}
    both = [key for key in one if key in other and one[key] != other[key]]
    return {str(key): (str(one[key]), str(other[key])) for key in both}


def _sizes(phase: PhaseChange) -> Iterator[Difference]:
    """Other work in each step."""
    if phase.phase is None:
        return
    name = phase.phase or "the steps"
    batch = phase.before.batch, phase.after.batch
    tokens = phase.before.tokens, phase.after.tokens
    if _are_other(*batch):
        said = f"{name}: {_counted(batch[0], 'sequence')} a step in A, {batch[1]} in B"
        yield Difference("diff.batch", said, *batch)
    if _are_other(*tokens):
        said = f"{name}: {_counted(tokens[0], 'token')} a step in A, {tokens[1]} in B"
        yield Difference("diff.tokens", said, *tokens)
    if min(batch) < 0 or min(tokens) < 0:
        sides = [
            s
            for s, pair in zip("AB", zip(batch, tokens, strict=True), strict=True)
            if min(pair) < 0
        ]
        said = f"{name}: sequences and tokens of a step are not recorded in {' and '.join(sides)}, "
        said += "so that they are taken to be as many"
        known = [None if min(pair) < 0 else list(pair) for pair in zip(batch, tokens, strict=True)]
        yield Difference("diff.sizes", said, known[0], known[1], breaks=False)


def _are_other(ours: int, theirs: int) -> bool:
    """Whether both sizes are known, and steps of them are not alike."""
    return min(ours, theirs) >= 0 and abs(ours - theirs) > _SIZE_RATIO * max(ours, theirs)


def _other_kernels(phase: PhaseChange) -> Iterator[Difference]:
    """Other types of numbers can do that to a small program; so does another program."""
    ours = sum(row.before_count > 0 for row in phase.kernels)
    theirs = sum(row.after_count > 0 for row in phase.kernels)
    if ours and theirs and ours + theirs == len(phase.kernels):
        where = f"{phase.phase}: " if phase.phase else ""
        said = f"{where}A and B have no kernel in common; are they the same program?"
        yield Difference("diff.kernels", said, ours, theirs, breaks=False)


_OTHER_PROGRAMS = Difference(
    "diff.program", "two programs: they call other operators and run other kernels", "A", "B"
)
_CHECKS: tuple[Callable[[Analysis, Analysis], Iterator[Difference]], ...] = (
    _models,
    _devices,
    _details,
    _inflation,
    _ranks,
    _step_sources,
    _damage,
    _settings,
)

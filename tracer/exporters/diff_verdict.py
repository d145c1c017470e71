"""What changed, in two or three sentences: the answer before all tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from tracer.diff_analysis import BETWEEN, DiffAnalysis, Difference, Measure, PhaseChange
from tracer.exporters.advice import IDLE_NAMES
from tracer.exporters.claims import GROUP_NAMES, part_name
from tracer.exporters.diff_findings import CostChange
from tracer.exporters.diff_levels import (
    Bucket,
    between_of,
    buckets_of,
    leading,
    mean_buckets,
    usual,
    words_of,
)
from tracer.exporters.diff_promises import PLACES, Prediction
from tracer.exporters.format import (
    change_percent_text,
    change_text,
    duration_text,
    percent_text,
    scale_for,
)
from tracer.exporters.names import inert, where_text
from tracer.exporters.words import capital, small

# What two states of one program have in common.
_UNLIKE = ("diff.model", "diff.program", "diff.steps")
# A part is told that makes up so much of the change, at most so many.
_TOLD_RATIO, _MOST_TOLD = 0.1, 3
# Groups that are told by part: these have little in common.
_BY_PART = ("overhead", "other")
# A change below this share of a step is told of no part.
_SMALLEST_RATIO = 0.005
# A finding is told that changed by this share of the step.
_FINDING_RATIO = 0.1
# What a loop does beside its steps is told where its share of the time changed by so much.
_LOOP_RATIO = 0.05
_LOOP_WORDS = {"loop.evaluation": "Evaluation"}
# A title with so many words before its first colon is whole without the rest.
_WHOLE_WORDS = 5


def diff_verdict(diff: DiffAnalysis, costs: Sequence[CostChange]) -> str:
    """Whether B is faster, by what, and whether that was promised."""
    if not diff.phases:
        return f"A and B cannot be compared: {_why_not(diff)}."
    if is_unlike(diff):
        return " ".join((*_caution(diff), *map(side_by_side, diff.phases)))
    main, *others = diff.phases
    parts = parts_words(main, costs)
    sentences = [f"{answer_words(main)}{f'; {parts}' if parts else ''}."]
    sentences += [second_words(change) for change in others]
    sentences += _other_findings(main, costs)
    sentences += _shares_of_loop(costs)
    sentences += _promise(costs) if diff.comparable else ()
    return " ".join((*_caution(diff), *sentences))


def _why_not(diff: DiffAnalysis) -> str:
    told = [inert(d.message) for d in diff.differences if d.rule == "diff.phases"]
    return "; ".join((diff.reason, *told))


def is_unlike(diff: DiffAnalysis) -> bool:
    """Whether A and B are no two states of one program, or their steps no two of one kind."""
    return any(_is_unlike(difference) for difference in diff.differences)


def _is_unlike(difference: Difference) -> bool:
    none_found = None in (difference.before, difference.after)  # whole recordings are compared
    return difference.breaks and difference.rule in _UNLIKE and not none_found


def _caution(diff: DiffAnalysis) -> Iterator[str]:
    """What stands against the comparison is said before its answer."""
    against = against_words(diff)
    if against:
        yield caution_words(against, is_unlike(diff))


def against_words(diff: DiffAnalysis, besides: Collection[str] = ()) -> list[str]:
    """What stands against the comparison, the weightiest first, but for rules that are told."""
    against = sorted((d for d in diff.differences if d.breaks), key=_weight)
    return [inert(d.message).rstrip(".") for d in against if d.rule not in besides]


def caution_words(against: Sequence[str], unlike: bool) -> str:
    """The sentence before the answer. `unlike`: the first of these makes it none of a change."""
    more = f", and {len(against) - 1} more below" if len(against) > 1 else ""
    what = "A and B cannot be compared" if unlike else "Not like with like"
    return f"{what} ({against[0]}{more})."


def _weight(difference: Difference) -> int:
    return _UNLIKE.index(difference.rule) if _is_unlike(difference) else len(_UNLIKE)


def side_by_side(change: PhaseChange) -> str:
    """The times of two programs: none is before or after the other."""
    one = capital(words_of(change).one if change.phase is not None else "the whole recording")
    times = duration_text(change.step.before_ns), duration_text(change.step.after_ns)
    return f"{one} takes {times[0]} in A, {times[1]} in B."


def answer_words(change: PhaseChange) -> str:
    """Whether B is faster, and by what."""
    measure, apart = leading(change)
    words = words_of(change)
    times = times_words(measure)
    if not measure.change_ns:
        took = duration_text(measure.after_ns)
        return f"Nothing changed: {words.one}{apart} takes {took} in A and in B"
    if measure.within_scatter:
        times += f" ({change_percent_text(measure.change_ratio)})"
        text = f"No change beyond the scatter of the steps: {words.one}{apart} {times}"
        return f"{text}, where up to {duration_text(measure.scatter_ns)} may be chance"
    if change.pace is not None and not apart:
        return f"{capital(words.one)} {times}, but {_pace_words(change.pace)}"
    each = f" {words.one}" if change.phase is not None else ""
    pace = "" if change.pace is None else _pace_words(change.pace)
    aside = [_unsure(measure), pace, _step_words(change)]
    return f"B is {_faster(measure)}{each}{apart}: {times}{_in_brackets(*aside)}"


def _step_words(change: PhaseChange) -> str:
    """The step beside the time from start to start; beside the mean one, what medians tell."""
    if not leading(change)[1]:
        return ""
    if not change.mean_tells:
        return f"the step itself {times_words(change.step)}"
    measure, apart = usual(change)
    if not measure.change_ns:
        return f"the median{apart or ' step'} {duration_text(measure.after_ns)} in both"
    chance = ", within the scatter" if measure.within_scatter else ""
    return f"the median{apart or ' step'} {times_words(measure)}{chance}"


def _unsure(measure: Measure) -> str:
    return measure.reason if measure.scatter_ns is None else ""


def _in_brackets(*asides: str) -> str:
    said = "; ".join(aside for aside in asides if aside)
    return f" ({said})" if said else ""


def _faster(measure: Measure) -> str:
    """`12 % faster`, by how much less time it takes; `3.1 times as slow`."""
    ratio = measure.change_ratio
    if ratio is None:
        return "slower"
    if ratio >= 1:
        times = 1 + ratio
        return f"{times:.1f} times as slow" if times < 100 else f"{times:,.0f} times as slow"
    return f"{percent_text(abs(ratio))} {'faster' if ratio < 0 else 'slower'}"


def times_words(measure: Measure) -> str:
    """`4.10 -> 3.62 ms`."""
    before, after = measure.before_ns, measure.after_ns
    scale = scale_for(min(before, after) or max(before, after))
    if max(before, after) >= 1000 * scale.unit_ns:
        return f"{duration_text(before)} -> {duration_text(after)}"
    return f"{scale.text(before)} -> {scale.with_unit(after)}"


def second_words(change: PhaseChange) -> str:
    """Another phase in short."""
    measure, apart = leading(change)
    words = words_of(change)
    text = f"{capital(words.one)}{apart} {times_words(measure)}"
    if not measure.change_ns:
        return f"{capital(words.one)} takes {duration_text(measure.after_ns)} in both."
    if measure.within_scatter:
        return f"{text}, within the scatter of the steps."
    if change.pace is not None and not apart:
        return f"{text}, but {_pace_words(change.pace)}."
    return f"{text}, {_faster(measure)}{_in_brackets(_unsure(measure))}."


def _pace_words(pace: float) -> str:
    """All of it changed alike: what was changed in the program is not told by that."""
    side = "B" if pace > 1 else "A"
    return f"all operators x{pace:.2g}: the machine was slower or busier in {side}"


def slow_words(change: PhaseChange, measure: Measure) -> str:
    """Why a gate fails: how much longer a step takes, and whether that may be chance."""
    apart = leading(change)[1] if change.mean_tells else " from start to start"
    one = words_of(change).one + ("" if measure is change.step else apart)
    text = f"{one} is {_faster(measure)} in B, {times_words(measure)}"
    return f"{text}, within the scatter of the steps" if measure.within_scatter else text


# --- what it went to -----------------------------------------------------------------------------


def parts_words(change: PhaseChange, costs: Sequence[CostChange]) -> str:
    """What the change went to, with the findings that went or came; "" where that is not told."""
    parts = told_parts(change)
    if change.pace is not None:  # all that runs in the step changed alike
        parts = [bucket for bucket in parts if bucket.group == BETWEEN]
    return ", ".join(_part_words(change, bucket, costs) for bucket in parts)


def told_parts(change: PhaseChange) -> list[Bucket]:
    """The groups of work, copies and causes of idle that changed most, beyond their scatter where
    the median is the answer."""
    step = max(change.step.before_ns, change.step.after_ns, 1) * _devices(change)
    candidates = _candidates(change)
    largest = max((abs(bucket.change_ns) for bucket in candidates), default=0)
    limit = max(_TOLD_RATIO * largest, _SMALLEST_RATIO * step)
    told = [bucket for bucket in candidates if abs(bucket.change_ns) >= limit]
    return sorted(told, key=lambda bucket: -abs(bucket.change_ns))[:_MOST_TOLD]


def _candidates(change: PhaseChange) -> list[Bucket]:
    """What may be told: of the mean turn, where it is the answer, all that it goes to; of a step a
    part whose whole group scatters by more where nothing else changed."""
    if change.mean_tells:
        return [b for b in mean_buckets(change) if bool(b.part) == (b.group in _BY_PART)]
    parts = [b for b in buckets_of(change) if bool(b.part) == (b.group in _BY_PART)]
    parts = [b for b in parts if not chance(change, b)]
    return ([b for b in parts if _beyond_group(change, b)] or parts) + between_steps(change)


def chance(change: PhaseChange, bucket: Bucket) -> Literal["", "scatter", "few"]:
    """Why the change may be chance: that of what is shown or of the median is within the scatter,
    or few steps alone make it, and not the median; "" where it is none."""
    median = change.medians.get((bucket.group, bucket.part))
    if median is None or median.scatter_ns is None:
        return ""
    if median.within_scatter or abs(bucket.change_ns) <= median.scatter_ns:
        return "scatter"
    return "few" if 2 * abs(median.change_ns) < abs(bucket.change_ns) else ""


def _beyond_group(change: PhaseChange, bucket: Bucket) -> bool:
    """Whether a part changed by more than its whole group scatters."""
    median = change.medians.get((bucket.group, ""))
    return median is None or abs(bucket.change_ns) > (median.scatter_ns or 0)


def between_steps(change: PhaseChange) -> list[Bucket]:
    """What runs between the steps, where the answer is from start to start."""
    if not leading(change)[1]:
        return []
    between, devices = between_of(change), _devices(change)
    if between is None:
        return []
    return [replace(between, before_ns=between.before_ns * devices,
                    after_ns=between.after_ns * devices)]  # fmt: skip


def _devices(change: PhaseChange) -> int:
    return max(change.before.devices, change.after.devices, 1)


def _part_words(change: PhaseChange, bucket: Bucket, costs: Sequence[CostChange]) -> str:
    name = bucket_name(bucket, change.after.devices)
    devices = _devices(change)
    told = f"{name} {change_text(bucket.change_ns / devices)}"
    cause = _cause_of(bucket, costs)
    return f"{told} ({cause})" if cause else told


def bucket_name(bucket: Bucket, devices: int) -> str:
    """A group, or a part of the overhead or of other work, in words."""
    if bucket.part == "host" and not devices:
        return "time outside operators"
    if bucket.part == "transfer":
        return "copies between host and GPU"
    if bucket.part == "unattributed":
        return "work without a role"
    if bucket.part:
        return IDLE_NAMES.get(bucket.part, part_name(bucket.part))
    return GROUP_NAMES.get(bucket.group, bucket.group)


def _cause_of(bucket: Bucket, costs: Sequence[CostChange]) -> str:
    """The finding that went or came with the change, where one fits."""
    status = "gone" if bucket.change_ns < 0 else "new"
    place = bucket.part or bucket.group
    for row in costs:
        finding = row.change.finding
        fits = place == BETWEEN if row.between else PLACES.get(finding.rule) == place
        if row.change.status == status and fits and finding.severity != "info":
            return f"{status}: {_title(row)}"
    return ""


def _title(row: CostChange) -> str:
    """The title up to its reasons, and the line."""
    finding = row.change.finding
    first, *more = inert(finding.title).rstrip(".").split(": ")
    if more and first == finding.detail.get("phase"):
        first, *more = more
    if more and len(first.split()) < _WHOLE_WORDS:  # it is about that, and says it behind the colon
        first = f"{first}: {more[0]}"
    title = _of_a_step(row, small(first))
    where = finding.where
    place = where_text(where) if where.file is not None else ""
    return f"{title}, at {place.partition(', ')[0]}" if place else title


def _of_a_step(row: CostChange, title: str) -> str:
    """The title with its cost a step, as all times beside it are, for the one of the recording."""
    cost, each = (
        row.change.finding.cost_ns,
        row.before_ns if row.change.after is None else row.after_ns,
    )
    if not row.each_step or not cost or not each:
        return title
    whole = re.compile(rf"(?<![\d.]){re.escape(_short_text(cost))}(?! at a time)")
    return whole.sub(f"{duration_text(each)} a step", title, count=1)


def _short_text(ns: int) -> str:
    """As titles tell a time: without zeros at its end."""
    number, _, unit = duration_text(ns).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def _other_findings(change: PhaseChange, costs: Sequence[CostChange]) -> Iterator[str]:
    """The largest finding that went or came and that no part was told with."""
    named = {(bucket.part or bucket.group, bucket.change_ns < 0) for bucket in told_parts(change)}
    for row in costs:
        status, finding = row.change.status, row.change.finding
        if status not in ("gone", "new") or finding.severity == "info":
            continue
        place = BETWEEN if row.between else PLACES.get(finding.rule, "")
        if (place, status == "gone") in named:
            continue
        if row.each_step and abs(row.change_ns or 0) < _FINDING_RATIO * change.step.before_ns:
            continue
        yield f"{capital(status)} in B: {_title(row)}."
        return


def _shares_of_loop(costs: Sequence[CostChange]) -> Iterator[str]:
    """What runs beside the steps and is there on both sides: no step tells of it."""
    for row in costs:
        ours, theirs = row.change.before, row.change.after
        if ours is None or theirs is None or ours.rule not in _LOOP_WORDS:
            continue
        if ours.ratio is None or theirs.ratio is None:
            continue
        if abs(theirs.ratio - ours.ratio) >= _LOOP_RATIO:
            shares = percent_text(theirs.ratio), percent_text(ours.ratio)
            yield f"{_LOOP_WORDS[ours.rule]} takes {shares[0]} of the time in B, {shares[1]} in A."


def _promise(costs: Sequence[CostChange]) -> Iterator[str]:
    """What A's report said that the change would gain, and what it did."""
    promised = [row.prediction for row in costs if row.prediction is not None]
    if promised:
        yield f"{promise_text(max(promised, key=lambda p: p.predicted_gain_ns))}."


def promise_text(prediction: Prediction) -> str:
    """Predicted and measured side by side; where all else changed too, what the promise is about
    stands beside it, and all else for itself."""
    apart = " from start to start" if prediction.turn else ""
    gain = change_text(-prediction.predicted_gain_ns)
    more = prediction.among - 1
    also = f", with {more} more of its findings gone" if more else ""
    about = prediction.about
    if prediction.else_changed and about is not None:
        told = f"A's report predicted {gain} a step{apart}; B measures {bucket_name(about, 1)} "
        rest = change_text(prediction.all_else_ns or 0)
        return f"{told}{_signed(about.change_ns)}, and all else {rest}{also}"
    predicted = f"A's report predicted {duration_text(prediction.predicted_ns)} a step{apart}"
    measured = f"B measures {duration_text(prediction.measured_ns)}"
    measured += f" ({_signed(-prediction.measured_gain_ns)})"
    if prediction.else_changed:
        measured += ", in which other things changed as well"
    return f"{predicted} ({gain}), {measured}{also}"


def _signed(ns: int) -> str:
    return change_text(ns) if ns else "0"

"""What holds the requests of a server up, judged by a window of its metrics alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracer.analyzers.serving.advice import advice_for
from tracer.analyzers.serving.measures import (
    acceptance,
    first_token_queue,
    hit_ratio,
    is_idle,
    present_share,
    stage_share,
    token_time,
    waits,
)
from tracer.analyzers.serving.window import make_window
from tracer.analyzers.wording import counted, milliseconds
from tracer.findings import Check, Finding, Severity
from tracer.serving import LATENCIES, Readings, ServingAnalysis, ServingWindow

# Shares, so that they hold for engines of any speed; README states them.
FULL_CACHE = 0.95
PREEMPTED = 0.05  # of the requests that ended, or of those that run
PREFILL_OF_REQUEST = 0.40
DECODE_OF_REQUEST = 0.60
SMALL_BATCH = 4.0  # requests at a time; a step reads all weights for them
UNEVEN = 3.0  # times: p95 of the gaps between tokens against their median, by bucket
PLATEAU = 0.90  # the fewest that run, of the most: they are at a limit
ABORTED = 0.05
ACCEPTED = 0.50

# Without any of these concepts a rule cannot be judged.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "serving.stalled": ("steps",),
    "serving.kv_cache": ("kv_cache_usage", "preemptions", "paused"),
    "serving.queue": ("queue_time", "waiting"),
    "serving.prefill": ("prefill_time", "time_to_first_token", "prefill_seconds"),
    "serving.token_gaps": ("inter_token_latency",),
    "serving.decode_small_batch": ("decode_time", "time_to_first_token", "decode_seconds"),
    "serving.aborted": ("aborted",),
    "serving.speculation": ("accepted_tokens", "acceptance"),
}
CONCEPTS = (
    "running",
    "waiting",
    "kv_cache_usage",
    "preemptions",
    "prompt_tokens",
    "generated_tokens",
    *LATENCIES,
    "finished",
    "aborted",
)
_EITHER = {
    "prefix_cache": ("prefix_cache_hits", "prefix_cache_hit"),
    "speculation": ("accepted_tokens", "acceptance"),
}


def analyze_serving(readings: Readings) -> ServingAnalysis:
    """The window of the readings, what is wrong in it, and what could not be looked at."""
    window = make_window(readings.readings)
    engine = readings.engine.key
    made = [rule(window, engine) for rule in _RULES]
    findings = [finding for finding in made if finding is not None]
    told = {*window.levels, *window.counts, *window.times}
    absent = [concept for concept in CONCEPTS if concept not in told]
    absent += [name for name, any_of in _EITHER.items() if not told.intersection(any_of)]
    checks = tuple(_check(window, rule, told, findings) for rule in _NEEDS)
    return ServingAnalysis(
        readings,
        window,
        tuple(findings),
        checks,
        tuple(absent),
        idle=is_idle(window),
        queue_of_first_token_ratio=first_token_queue(window),
        prefix_cache_hit_ratio=hit_ratio(window),
        acceptance_ratio=acceptance(window),
        prefill_ratio=stage_share(window, "prefill_time"),
        decode_ratio=stage_share(window, "decode_time"),
        token_ns=token_time(window),
    )


def _check(window: ServingWindow, rule: str, told: set[str], findings: list[Finding]) -> Check:
    if any(finding.rule == rule for finding in findings):
        return Check(rule, "found")
    if not told.intersection(_NEEDS[rule]):
        return Check(rule, "not_checked", f"the engine tells no {' or '.join(_NEEDS[rule])}")
    if is_idle(window):
        return Check(rule, "not_checked", "nothing was served in the window")
    return Check(rule, "clear")


def _stalled(window: ServingWindow, engine: str) -> Finding | None:
    """Requests are there in every reading, and nothing comes. Told by what the engine counts while
    it works: many count the tokens of a request when it ends."""
    present = [window.levels[name] for name in ("running", "waiting") if name in window.levels]
    if window.counts.get("steps") != 0 or window.counts.get("generated_tokens"):
        return None
    if not any(level.low >= 1 for level in present):
        return None
    title = f"{_there(window)}, and no step ended in {milliseconds(window.wall_ns)}: the engine "
    title += "hangs, or one step takes longer than that"
    return _finding("serving.stalled", "critical", title, engine, {})


def _there(window: ServingWindow) -> str:
    running, waiting = window.levels.get("running"), window.levels.get("waiting")
    said = [_requests(running.last, "run")] if running is not None else []
    if waiting is not None and waiting.high >= 1:
        said.append(_requests(waiting.last, "wait", bool(said)))
    return " and ".join(said)


def _requests(number: float, does: str, again: bool = False) -> str:
    count = round(number)
    noun = "" if again else " request" if count == 1 else " requests"
    return f"{count}{noun} {does}{'s' if count == 1 else ''}"


def _kv_cache(window: ServingWindow, engine: str) -> Finding | None:
    """The cache holds requests up: they wait for room in it, or lose theirs."""
    full, lost = _fullest(window), _lost(window)
    if not ((waits(window) and (lost or full >= FULL_CACHE)) or _often_lost(window)):
        return None
    title = f"{_queue_words(window)}; {_cache_words(window)}" if waits(window) else _again(window)
    detail = {"kv_cache_usage_ratio": full, "preemptions": lost}
    return _finding("serving.kv_cache", "critical", title, engine, detail, round(lost))


def _fullest(window: ServingWindow) -> float:
    level = window.levels.get("kv_cache_usage")
    return 0.0 if level is None else level.high


def _lost(window: ServingWindow) -> float:
    paused = window.levels.get("paused")
    return window.counts.get("preemptions", 0.0) or (0.0 if paused is None else paused.high)


def _often_lost(window: ServingWindow) -> bool:
    running = window.levels.get("running")
    ended = max(window.counts.get("finished", 0.0), 0.0 if running is None else running.mean)
    lost = _lost(window)
    return lost > 0 and lost >= PREEMPTED * ended


def _cache_words(window: ServingWindow) -> str:
    level, lost = window.levels.get("kv_cache_usage"), round(_lost(window))
    preempted = counted(lost, "preemption") if lost else "no preemptions"
    if level is None:
        return f"the KV cache makes them wait, with {preempted}"
    return f"the KV cache is {_percent(level.high)} full with {preempted}"


def _again(window: ServingWindow) -> str:
    lost = round(_lost(window))
    title = f"The KV cache is too small for those that run: {counted(lost, 'preemption')} in "
    title += f"{milliseconds(window.wall_ns)}, each of which computes a request again"
    level = window.levels.get("kv_cache_usage")
    return title if level is None else f"{title}; it is {_percent(level.high)} full"


def _queue(window: ServingWindow, engine: str) -> Finding | None:
    """Requests wait, and not for the cache."""
    if not waits(window) or _kv_cache(window, engine) is not None:
        return None
    running = window.running_while_waiting
    limited = running is None or running.low >= PLATEAU * running.high
    stages = window.stages
    half = stages is not None and stages.ratio("queue_time") >= 0.5
    detail = {"at_limit": limited, "of_first_token_ratio": first_token_queue(window)}
    title = _queue_words(window)
    if running is not None:
        title += f", while {_number(running.mean)} run"
    if window.times.get("queue_time") is None:
        title += f": about {_percent(present_share(window))} of a request's time is the queue"
    return _finding(
        "serving.queue",
        "critical" if half else "warning",
        title,
        engine,
        detail,
        advice=f"serving.queue:{'batch' if limited else 'prefill'}",
    )


def _queue_words(window: ServingWindow) -> str:
    queue, first = window.times.get("queue_time"), window.times.get("time_to_first_token")
    share = first_token_queue(window)
    said: list[str] = []
    if share is not None and queue is not None and first is not None:
        times = _of(queue.mean_ns, first.mean_ns)
        said.append(f"{_percent(share)} of the time to first token is the queue ({times})")
    elif queue is not None:
        said.append(f"a request waits {milliseconds(queue.mean_ns)} in the queue")
    waiting = window.levels.get("waiting")
    if waiting is not None and waiting.high >= 1:
        said.append(f"{_number(waiting.mean)}{' wait' if said else ''} at a time")
    return f"Requests wait: {'; '.join(said)}"


def _prefill(window: ServingWindow, engine: str) -> Finding | None:
    share = stage_share(window, "prefill_time")
    if share is None or share < PREFILL_OF_REQUEST or waits(window):
        return None
    title = f"Prompts take {'most' if share > 0.5 else 'much'} of {_whole(window)}: prefill is "
    title += f"{_percent(share)} of it{_stage_words(window, 'prefill_time')}"
    hit = hit_ratio(window)
    if hit is not None:
        title += f"; {_percent(hit)} of the prompt tokens come from the prefix cache"
    detail = {"prefill_ratio": share, "prefix_cache_hit_ratio": hit}
    return _finding("serving.prefill", "warning", title, engine, detail)


def _whole(window: ServingWindow) -> str:
    return "a request" if window.stages is not None else "the engine's time"


def _stage_words(window: ServingWindow, stage: str) -> str:
    stages = window.stages
    return "" if stages is None else f" ({_of(stages.parts[stage], stages.total_ns)})"


def _token_gaps(window: ServingWindow, engine: str) -> Finding | None:
    """By the bounds of their buckets, so that no wide bucket makes a tail."""
    times = window.times.get("inter_token_latency")
    if times is None or times.p50 is None or times.p95 is None or times.p50.high_ns is None:
        return None
    if times.p95.low_ns < UNEVEN * times.p50.high_ns:
        return None
    title = f"Tokens come unevenly: one gap in 20 is {milliseconds(times.p95.ns)} or longer, half "
    title += f"of them are under {milliseconds(times.p50.high_ns)}"
    detail = {"p50_ns": times.p50.ns, "p95_ns": times.p95.ns}
    return _finding("serving.token_gaps", "warning", title, engine, detail)


def _decode_small_batch(window: ServingWindow, engine: str) -> Finding | None:
    share, running = stage_share(window, "decode_time"), window.levels.get("running")
    if share is None or share < DECODE_OF_REQUEST or running is None or waits(window):
        return None
    if not 0 < running.mean < SMALL_BATCH:
        return None
    title = (
        f"Decode takes {_percent(share)} of {_whole(window)}{_stage_words(window, 'decode_time')}"
    )
    gap = token_time(window)
    title += f", {milliseconds(gap)} a token" if gap is not None else ""
    title += f", with {_number(running.mean)} {'request' if running.mean <= 1 else 'requests'} at "
    title += "a time: each step reads all weights for a small batch"
    detail = {"decode_ratio": share, "running_mean": running.mean}
    return _finding("serving.decode_small_batch", "info", title, engine, detail)


def _aborted(window: ServingWindow, engine: str) -> Finding | None:
    aborted = window.counts.get("aborted", 0.0)
    ended = max(window.counts.get("finished", 0.0), aborted)
    if not aborted or aborted < ABORTED * ended:
        return None
    title = f"{round(aborted)} of {counted(round(ended), 'request')} that ended were aborted"
    detail = {"aborted": aborted, "finished": ended}
    return _finding("serving.aborted", "warning", title, engine, detail, round(aborted))


def _speculation(window: ServingWindow, engine: str) -> Finding | None:
    share = acceptance(window)
    if share is None or share >= ACCEPTED:
        return None
    title = f"{_percent(share)} of the tokens that speculative decoding drafts are accepted"
    return _finding("serving.speculation", "info", title, engine, {"accepted_ratio": share})


# The first that holds is the answer.
_RULES: tuple[Callable[[ServingWindow, str], Finding | None], ...] = (
    _stalled,
    _kv_cache,
    _queue,
    _prefill,
    _token_gaps,
    _aborted,
    _decode_small_batch,
    _speculation,
)


def _finding(
    rule: str,
    severity: Severity,
    title: str,
    engine: str,
    detail: Mapping[str, Any],
    count: int = 1,
    advice: str = "",
) -> Finding:
    return Finding(
        rule,
        severity,
        title,
        max(count, 1),
        detail=dict(detail),
        advice=advice_for(advice or rule, engine),
    )


def _of(part_ns: float, whole_ns: float) -> str:
    """`1.2 of 1.9 s`."""
    part, whole = milliseconds(part_ns), milliseconds(whole_ns)
    number, _, unit = part.partition(" ")
    return f"{number} of {whole}" if whole.endswith(f" {unit}") else f"{part} of {whole}"


def _percent(ratio: float) -> str:
    percent = 100 * ratio
    return f"{percent:.1f} %" if 0 < percent < 10 or 99.5 <= percent < 100 else f"{percent:.0f} %"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

"""Numbers derived from a window: shares of a request, of the queue, of caches and drafts."""

from __future__ import annotations

from tracer.serving import ServingWindow

# Shares, so that they hold for engines of any speed; README states them.
QUEUE_OF_REQUEST = 0.10  # of a request's time
QUEUE_OF_FIRST_TOKEN = 0.30


def is_idle(window: ServingWindow) -> bool:
    """Whether nobody asked for anything: none ran or waited, and nothing came."""
    worked = any(window.counts.get(c) for c in ("generated_tokens", "prompt_tokens", "finished"))
    asked = any(level.high for name in ("running", "waiting") if (level := window.levels.get(name)))
    return not worked and not asked and not any(window.times.values())


def waits(window: ServingWindow) -> bool:
    """Whether the queue is a notable part of what requests take: as the engine times it, or by how
    many wait beside those that run."""
    if window.stages is not None and "queue_time" in window.stages.parts:
        share = first_token_queue(window)
        enough = share is None or share >= QUEUE_OF_FIRST_TOKEN
        if window.stages.ratio("queue_time") >= QUEUE_OF_REQUEST and enough:
            return True
    waiting = window.levels.get("waiting")
    if waiting is None or waiting.mean < 1:
        return False
    return present_share(window) >= QUEUE_OF_REQUEST


def present_share(window: ServingWindow) -> float:
    """Those that wait, of all that are there: requests are in a stage in proportion to the time
    that they spend in it."""
    waiting, running = (window.levels.get(name) for name in ("waiting", "running"))
    waits_mean = 0.0 if waiting is None else waiting.mean
    present = waits_mean + (0.0 if running is None else running.mean)
    return waits_mean / present if present else 0.0


def first_token_queue(window: ServingWindow) -> float | None:
    """The queue's share of the time to first token; None where either was not timed, or where
    those that ended queued longer than those that began take altogether."""
    queue, first = window.times.get("queue_time"), window.times.get("time_to_first_token")
    if queue is None or first is None or queue.mean_ns > first.mean_ns:
        return None
    return queue.mean_ns / first.mean_ns if first.mean_ns else None


def stage_share(window: ServingWindow, stage: str) -> float | None:
    """A stage's share of a request, else of the time that the engine computed; None where neither
    is told."""
    if window.stages is not None:
        return window.stages.ratio(stage) if stage in window.stages.parts else None
    prefill, decode = (window.counts.get(f"{name}_seconds") for name in ("prefill", "decode"))
    if prefill is None or decode is None or not prefill + decode:
        return None
    return (prefill if stage == "prefill_time" else decode) / (prefill + decode)


def hit_ratio(window: ServingWindow) -> float | None:
    """The share of prompt tokens that the prefix cache served; the engine's own recent figure
    where it counts none."""
    counted_ratio = window.ratio("prefix_cache_hits", "prefix_cache_queries")
    level = window.levels.get("prefix_cache_hit")
    if counted_ratio is None and "prefix_cache_hits" not in window.counts and level is not None:
        return level.last
    return counted_ratio


def acceptance(window: ServingWindow) -> float | None:
    """The share of drafted tokens that were accepted; None where none were drafted."""
    if "acceptance" in window.levels and "accepted_tokens" not in window.counts:
        level = window.levels["acceptance"]
        return level.last if level.high else None
    return window.ratio("accepted_tokens", "draft_tokens")


def token_time(window: ServingWindow) -> float | None:
    """The mean time from one token of a request to its next, in nanoseconds."""
    for concept in ("inter_token_latency", "time_per_output_token"):
        times = window.times.get(concept)
        if times is not None:
            return times.mean_ns
    seconds, tokens = window.counts.get("decode_seconds"), window.counts.get("generated_tokens")
    return None if seconds is None or not tokens else seconds * 1e9 / tokens

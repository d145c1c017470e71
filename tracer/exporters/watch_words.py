"""What a watched server does, in sentences: the answer, and what a reader must know about it."""

from __future__ import annotations

from tracer.exporters.format import counted, duration_text, percent_text
from tracer.serving import ServingAnalysis

# Shown in this order; the names are those of the columns of a report.
CONCEPT_WORDS = {
    "running": "running requests",
    "waiting": "waiting requests",
    "kv_cache_usage": "KV-cache usage",
    "preemptions": "preemptions",
    "prompt_tokens": "prompt tokens",
    "generated_tokens": "generated tokens",
    "time_to_first_token": "time to first token",
    "inter_token_latency": "inter-token latency",
    "time_per_output_token": "time per output token",
    "end_to_end": "end to end",
    "queue_time": "queue",
    "prefill_time": "prefill",
    "decode_time": "decode",
    "finished": "requests that ended",
    "aborted": "aborted requests",
    "prefix_cache": "prefix cache",
    "speculation": "speculative decoding",
}

_LOOKED_FOR = {
    "serving.queue": "its queue",
    "serving.kv_cache": "its KV cache",
    "serving.prefill": "prefill",
}


def watch_answer(analysis: ServingAnalysis) -> str:
    """Where a request's time goes and what to change."""
    if analysis.idle:
        wall = duration_text(analysis.window.wall_ns)
        return f"Nothing was served in {wall}: no request ran or waited, and no token came."
    if not analysis.findings:
        return _fine(analysis)
    first, *others = analysis.findings
    said = f"{first.title}. {first.advice}"
    second = next((f for f in others if f.severity != "info"), None)
    return said if second is None else f"{said} Also: {second.title}."


def _fine(analysis: ServingAnalysis) -> str:
    """Nothing is wrong that was looked at; what a request takes, and with how many others."""
    stages, said = analysis.window.stages, ""
    if stages is not None:
        said = f" A request takes {duration_text(stages.total_ns)}"
        if analysis.decode_ratio is not None:
            said += f", {percent_text(analysis.decode_ratio)} of it decode"
    if analysis.token_ns is not None:
        said += f"{',' if said else ' A token takes'} {duration_text(analysis.token_ns)}"
        said += " a token" if stages is not None else ""
    running = analysis.window.levels.get("running")
    if running is not None and said:
        said += f", {running.mean:.1f} at a time"
    return f"{_sound(analysis)}.{said}{'.' if said else ''}{_unseen(analysis)}"


def _sound(analysis: ServingAnalysis) -> str:
    clear = {check.rule for check in analysis.checks if check.status == "clear"}
    usage = analysis.window.levels.get("kv_cache_usage")
    if "serving.queue" not in clear:
        return "Nothing wrong was found"
    if usage is None:
        return "Nothing waits"
    return f"Nothing waits, and the KV cache has room ({percent_text(usage.high)} at most)"


def _unseen(analysis: ServingAnalysis) -> str:
    """What a server that seems sound was not seen for."""
    unseen = {check.rule for check in analysis.checks if check.status == "not_checked"}
    words = [said for rule, said in _LOOKED_FOR.items() if rule in unseen]
    if not words:
        return ""
    return f" {analysis.readings.engine.name} does not tell of {' and '.join(words)}."


def watch_notes(analysis: ServingAnalysis) -> list[str]:
    """What was lost or cut, and what a reader must know about the numbers."""
    readings, window = analysis.readings, analysis.window
    notes: list[str] = []
    if window.restarts:
        notes.append(
            f"{counted(window.restarts, 'restart')} in the window: what was counted between the "
            "last reading and the restart is lost"
        )
    if readings.missed:
        notes.append(f"{counted(readings.missed, 'poll')} without an answer: {readings.failure}")
    if analysis.damaged_lines:
        notes.append(f"{counted(analysis.damaged_lines, 'damaged line')} of the answers left out")
    if readings.engine.counts_at_end and not analysis.idle:
        notes.append(
            f"{readings.engine.name} counts the tokens of a request when it ends: those of "
            "requests that still run are in none of the numbers"
        )
    if readings.interrupted:
        notes.append("interrupted: the window is shorter than was asked")
    models = readings.readings[-1].models
    if len(models) > 1:
        notes.append(f"{len(models)} models are counted together: {', '.join(models)}")
    return notes


def progress_line(analysis_levels: dict[str, float], rates: dict[str, float]) -> str:
    """`2 run, 0 wait, KV 31 %, 120 tokens/s`; what is not told is left out."""
    said = [
        f"{analysis_levels[name]:.0f} {verb}"
        for name, verb in (("running", "run"), ("waiting", "wait"))
        if name in analysis_levels
    ]
    if "kv_cache_usage" in analysis_levels:
        said.append(f"KV cache {percent_text(analysis_levels['kv_cache_usage'])}")
    for name, words in (("prompt_tokens", "prompt"), ("generated_tokens", "generated")):
        if name in rates:
            said.append(f"{rates[name]:,.0f} {words} tokens/s")
    return ", ".join(said) or "no level is told"

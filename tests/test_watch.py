"""What a served page of metrics says, what a window of them is, and what is found in it."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import pytest

from tests.serving_pages import VLLM_LABELS, page, vllm_page
from tracer.analyzers.serving.causes import analyze_serving
from tracer.analyzers.serving.window import make_window, quantile
from tracer.collectors.serving.engines import engine_of, engines, metrics_of, read_page
from tracer.collectors.serving.exposition import Sample, parse_page, parse_sample
from tracer.exporters.watch_text import render_watch
from tracer.exporters.watch_words import CONCEPT_WORDS, watch_answer
from tracer.serving import Quantile, Reading, Readings, ServingAnalysis

SECOND_NS = 10**9


def readings_of(pages: Sequence[str], every_s: float = 10) -> Readings:
    """The pages as if they had been read one after the other."""
    engine = engine_of(parse_page(pages[0]))
    assert engine is not None
    read = [
        read_page(parse_page(text), engine, round(i * every_s * SECOND_NS))
        for i, text in enumerate(pages)
    ]
    return Readings("http://host:8000/metrics", engine, 0, tuple(read))


def watched(*pages: str) -> ServingAnalysis:
    return analyze_serving(readings_of(pages))


def rules(analysis: ServingAnalysis) -> list[str]:
    return [finding.rule for finding in analysis.findings]


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ("up 1", Sample("up", {}, 1.0)),
        ('a:b{x="1",y="2"} 3.5e+2', Sample("a:b", {"x": "1", "y": "2"}, 350.0)),
        ('a{x="1",} 3 1700000000000', Sample("a", {"x": "1"}, 3.0)),
        ('a{x="q\\"}\\\\\\n,"} +Inf', Sample("a", {"x": 'q"}\\\n,'}, math.inf)),
        ('a{x="1"} 3 # {trace_id="abc"} 0.5', Sample("a", {"x": "1"}, 3.0)),
        ('a{ x = "1" , y="2" } 3', Sample("a", {"x": "1", "y": "2"}, 3.0)),
        ('a{x="1} 3', None),
        ("a{x=1} 3", None),
        ("a three", None),
        ("<html>", None),
        ("9a 3", None),
    ],
)
def test_lines_of_the_text_format(line: str, sample: Sample | None) -> None:
    assert parse_sample(line) == sample


def test_damaged_lines_are_left_out_and_counted() -> None:
    found = parse_page('# TYPE a counter\na 1\n\nb{x="} 2\nc 3\nd{x="1"')
    assert [sample.name for sample in found.samples] == ["a", "c"]
    assert found.damaged_lines == 2


def test_a_page_without_its_last_line_end_lost_what_comes_after() -> None:
    # 1 may be the beginning of 123.
    found = parse_page("a 5\nb 1")
    assert [sample.name for sample in found.samples] == ["a"]
    assert found.damaged_lines == 1


# One metric of each engine, and the concept that it is read as.
ENGINE_PAGES = {
    "vllm": ("vllm:num_requests_running", "running"),
    "sglang": ("sglang:num_running_reqs", "running"),
    "trtllm": ("trtllm_num_requests_running", "running"),
    "tgi": ("tgi_batch_current_size", "running"),
    "llamacpp": ("llamacpp:requests_processing", "running"),
    "lmdeploy": ("lmdeploy:num_requests_running", "running"),
    "triton": ("nv_inference_pending_request_count", "waiting"),
}


@pytest.mark.parametrize("key", ENGINE_PAGES)
def test_engines_are_told_by_their_prefixes(key: str) -> None:
    metric, concept = ENGINE_PAGES[key]
    parsed = parse_page(page({"process_cpu_seconds_total": 1, metric: 3}))
    engine = engine_of(parsed)
    assert engine is not None
    assert engine.key == key
    assert read_page(parsed, engine, 0).gauges == {concept: (3.0,)}


def test_mlc_is_told_by_its_sums() -> None:
    parsed = parse_page(page({"engine_prefill_time_sum": 1.5, "prompt_tokens_sum": 7}))
    engine = engine_of(parsed)
    assert engine is not None and engine.name == "MLC-LLM"
    read = read_page(parsed, engine, 0)
    assert {name: sum(series.values()) for name, series in read.counters.items()} == {
        "prefill_seconds": 1.5,
        "prompt_tokens": 7.0,
    }


def test_other_metrics_are_of_no_engine() -> None:
    assert engine_of(parse_page(page({"node_cpu_seconds_total": 3}))) is None


def test_the_tables_fit_each_other() -> None:
    keys = {engine.key for engine in engines()}
    folder = files("tracer.collectors.serving")
    text = folder.joinpath("engine_metrics.csv").read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert {row["engine"] for row in csv.DictReader(lines)} == keys
    metrics = [metric for key in keys for metric in metrics_of(key)]
    assert {metric.kind for metric in metrics} <= {"gauge", "ratio", "counter", "histogram", "mean"}
    advice = files("tracer.analyzers.serving").joinpath("advice.csv").read_text("utf-8")
    rows = list(csv.DictReader(line for line in advice.splitlines() if line[:1] != "#"))
    assert {row["engine"] for row in rows} <= {*keys, ""}


def test_every_family_of_a_recorded_page_that_the_table_names_is_there(shared: Path) -> None:
    """The names of vLLM's table are those of a vLLM that ran; the older ones apart."""
    listed = (shared / "vllm_cpu" / "metrics.txt").read_text().splitlines()
    kinds = dict(line.split() for line in listed)
    told: dict[str, str] = {}
    for metric in metrics_of("vllm"):
        for name in metric.names:
            if name in kinds:
                told[metric.concept] = kinds[name]
            elif name.removesuffix("_count") in kinds:
                told[metric.concept] = "counter"
    draft = {"draft_tokens", "accepted_tokens"}  # only where it speculates
    assert {metric.concept for metric in metrics_of("vllm")} - told.keys() == draft
    by_kind = {"ratio": "gauge"}
    for metric in metrics_of("vllm"):
        if metric.concept not in draft:
            assert told[metric.concept] == by_kind.get(metric.kind, metric.kind)


def test_ranks_of_one_model_are_counted_once_and_engines_are_summed() -> None:
    text = page(
        {
            f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}}': tp
            for dp in (0, 1)
            for tp in (4 * dp + 10, 4 * dp + 9)
        }
    )
    parsed = parse_page(text)
    engine = engine_of(parsed)
    assert engine is not None
    assert read_page(parsed, engine, 0).gauges["running"] == (9.0, 13.0)


def test_newer_names_come_before_older_ones() -> None:
    old = page({"vllm:gpu_cache_usage_perc": 0.25})
    both = page({"vllm:gpu_cache_usage_perc": 0.25, "vllm:kv_cache_usage_perc": 0.5})
    read = [readings_of([text]).readings[0].gauges["kv_cache_usage"] for text in (old, both)]
    assert read == [(0.25,), (0.5,)]


def test_a_window_is_what_came_in_it() -> None:
    before = vllm_page(tokens=1000, prompt=5000, ended=100, times={"decode": 0.3})
    # 10 requests came, each of 4 s of decode, after 100 of 0.3 s.
    after_values = vllm_page(tokens=1400, prompt=5600, ended=110)
    window = make_window(readings_of([before, after_values]).readings)
    assert window.wall_ns == 10 * SECOND_NS
    assert window.counts["generated_tokens"] == 400
    assert window.per_second("generated_tokens") == 40
    assert window.per_second("prompt_tokens") == 60
    assert window.counts["finished"] == 10
    assert window.counts["aborted"] == 0


def test_quantiles_are_interpolated_in_the_buckets_of_the_window() -> None:
    name = "vllm:time_to_first_token_seconds"
    first = page({}, {name: ((1000, 0, 0, 0, 0, 0), 50.0)}, VLLM_LABELS)
    # 10 values up to 0.5 s, 10 from 1 to 2.5 s.
    second = page({}, {name: ((1000, 10, 0, 10, 0, 0), 70.0)}, VLLM_LABELS)
    times = make_window(readings_of([first, second]).readings).times["time_to_first_token"]
    assert times is not None
    assert (times.count, times.mean_ns) == (20, SECOND_NS)
    assert times.p50 == Quantile(SECOND_NS // 2, SECOND_NS // 10, SECOND_NS // 2)
    assert times.p95 == Quantile(2_350_000_000, SECOND_NS, 2_500_000_000)


def test_a_quantile_in_the_last_bucket_is_at_least_its_bound() -> None:
    found = quantile(0.95, (1e9, 5e9, math.inf), (1, 2, 10))
    assert found == Quantile(5 * SECOND_NS, 5 * SECOND_NS, None)
    assert found.at_least


def test_a_quantile_in_the_first_or_last_bucket_is_a_bound() -> None:
    name = "vllm:time_to_first_token_seconds"

    def shown(*counts: int) -> list[str]:
        none = page({}, {name: ((0,) * 6, 0.0)}, VLLM_LABELS)
        text = render_watch(watched(none, page({}, {name: (counts, 9.0)}, VLLM_LABELS)), width=100)
        line = next(line for line in text.splitlines() if "time to first token  " in line)
        return re.split(r" {2,}", line)[-3:]

    assert shown(9, 0, 0, 0, 0, 1) == ["< 100 ms", "> 5.00 s", "10"]
    assert shown(0, 10, 0, 0, 0, 0) == ["300 ms", "480 ms", "10"]


def test_nothing_in_the_window_is_no_time() -> None:
    same = vllm_page(ended=100, tokens=5)
    window = make_window(readings_of([same, same]).readings)
    assert window.times["time_to_first_token"] is None
    assert window.stages is None
    assert window.counts["generated_tokens"] == 0


def test_a_restart_counts_from_zero_and_is_told() -> None:
    pages = [vllm_page(tokens=tokens, ended=1) for tokens in (1000, 1100, 30, 80)]
    analysis = watched(*pages)
    assert analysis.window.counts["generated_tokens"] == 100 + 30 + 50
    assert analysis.window.restarts == 1
    assert analysis.damaged
    assert "1 restart in the window" in render_watch(analysis, width=100)


def test_a_restart_is_told_by_the_start_of_the_process_though_counts_grew() -> None:
    pages = [
        vllm_page(tokens=tokens, extra={"process_start_time_seconds": start})
        for tokens, start in ((10, 100.0), (50, 200.0))
    ]
    window = make_window(readings_of(pages).readings)
    assert (window.restarts, window.counts["generated_tokens"]) == (1, 50)


def test_a_series_that_appears_counts_from_zero() -> None:
    pages = [
        page({"tgi_queue_size": 0}),
        page({"tgi_queue_size": 0, 'tgi_request_failure{err="overloaded"}': 4}),
    ]
    assert make_window(readings_of(pages).readings).counts["aborted"] == 4


def test_a_series_that_damage_hid_does_not_count_its_lifetime() -> None:
    whole = "tgi_queue_size 0\ntgi_request_success 900\n"
    damaged = "tgi_queue_size 0\ntgi_request_success nine\n"
    window = make_window(readings_of([damaged, whole, whole.replace("900", "905")]).readings)
    assert window.counts["finished"] == 5
    again = make_window(readings_of([whole, damaged, whole.replace("900", "905")]).readings)
    assert (again.counts["finished"], again.restarts) == (5, 0)


def test_stages_add_up_to_the_request() -> None:
    analysis = watched(vllm_page(), vllm_page(ended=10, tokens=100, times={"other": 0.5}))
    stages = analysis.window.stages
    assert stages is not None
    assert stages.basis == "engine"
    assert sum(stages.parts.values()) == stages.total_ns == 4_710_000_000
    assert stages.parts["other"] == 500_000_000


def test_stages_follow_from_the_first_token_where_the_engine_times_none() -> None:
    def sglang(ended: int) -> str:
        times = {"queue_time": 0.3, "time_to_first_token": 0.9, "e2e_request_latency": 2.4}
        rows = {
            f"sglang:{k}_seconds": ([0, ended, 0, 0, 0, 0], s * ended) for k, s in times.items()
        }
        renamed = {k.replace("token_seconds_seconds", "token_seconds"): v for k, v in rows.items()}
        return page({"sglang:num_running_reqs": 8, "sglang:num_queue_reqs": 0}, renamed)

    stages = watched(sglang(2), sglang(12)).window.stages
    assert stages is not None
    assert stages.basis == "derived"
    assert dict(stages.parts) == {
        "queue_time": 300_000_000,
        "prefill_time": 600_000_000,
        "decode_time": 1_500_000_000,
        "other": 0,
    }


def test_a_full_cache_makes_requests_wait() -> None:
    times = {"queue": 1.2, "prefill": 0.7, "decode": 4.0}
    analysis = watched(
        vllm_page(running=30, waiting=14, cache=0.97),
        vllm_page(
            running=30, waiting=14, cache=0.98, preemptions=9, tokens=900, ended=20, times=times
        ),
    )
    assert rules(analysis)[0] == "serving.kv_cache"
    assert watch_answer(analysis).startswith(
        "Requests wait: 63 % of the time to first token is the queue (1.2 of 1.9 s); 14 wait at a "
        "time; the KV cache is 98 % full with 9 preemptions. Give the KV cache more memory (raise "
        "--gpu-memory-utilization"
    )


def test_a_queue_with_room_in_the_cache_is_a_limit_on_those_that_run() -> None:
    times = {"queue": 3.0, "prefill": 0.3}
    analysis = watched(
        vllm_page(running=16, waiting=20),
        vllm_page(running=16, waiting=20, tokens=900, ended=20, times=times),
    )
    assert rules(analysis) == ["serving.queue"]
    assert "--max-num-seqs" in analysis.findings[0].advice
    assert analysis.findings[0].detail["at_limit"] is True


def test_a_queue_whose_runners_vary_waits_for_prefill() -> None:
    times = {"queue": 3.0, "prefill": 0.3}
    analysis = watched(
        vllm_page(running=4, waiting=20),
        vllm_page(running=16, waiting=20, tokens=900, ended=20, times=times),
    )
    assert rules(analysis) == ["serving.queue"]
    assert "--max-num-batched-tokens" in analysis.findings[0].advice


def test_a_queue_is_seen_without_its_times() -> None:
    def llamacpp(tokens: int) -> str:
        return page(
            {
                "llamacpp:requests_processing": 2,
                "llamacpp:requests_deferred": 6,
                "llamacpp:tokens_predicted_total": tokens,
                "llamacpp:n_decode_total": tokens,
            }
        )

    analysis = watched(llamacpp(0), llamacpp(50))
    assert rules(analysis) == ["serving.queue"]
    assert watch_answer(analysis).startswith(
        "Requests wait: 6 at a time, while 2 run: about 75 % of a request's time is the queue. As "
        "many run as there are slots: raise --parallel"
    )


def test_a_short_queue_is_no_finding() -> None:
    # Half of the time to first token, and 2 % of the request.
    times = {"queue": 0.1, "prefill": 0.1, "decode": 4.0}
    analysis = watched(
        vllm_page(running=10), vllm_page(running=10, tokens=900, ended=20, times=times)
    )
    assert rules(analysis) == []
    assert watch_answer(analysis) == (
        "Nothing waits, and the KV cache has room (30 % at most). A request takes 4.20 s, 95 % of "
        "it decode, 10.0 at a time."
    )


def test_preemptions_alone_are_the_cache() -> None:
    analysis = watched(
        vllm_page(running=10, cache=0.9),
        vllm_page(running=10, cache=0.9, preemptions=4, tokens=900, ended=20),
    )
    assert rules(analysis) == ["serving.kv_cache"]
    assert "4 preemptions in 10 s" in analysis.findings[0].title


def test_prompts_take_most_of_a_request() -> None:
    extra = {"vllm:prefix_cache_hits_total": 30.0, "vllm:prefix_cache_queries_total": 1000.0}
    times = {"prefill": 3.0, "decode": 1.0}
    none = dict.fromkeys(extra, 0.0)
    analysis = watched(
        vllm_page(running=10, extra=none),
        vllm_page(running=10, tokens=900, ended=20, times=times, extra=extra),
    )
    assert rules(analysis) == ["serving.prefill"]
    assert analysis.findings[0].title == (
        "Prompts take most of a request: prefill is 75 % of it (3 of 4.01 s); 3.0 % of the prompt "
        "tokens come from the prefix cache"
    )


def test_decode_with_few_requests_at_a_time() -> None:
    analysis = watched(vllm_page(running=1), vllm_page(running=1, tokens=100, ended=5))
    assert rules(analysis) == ["serving.decode_small_batch"]
    assert "--speculative-config" in watch_answer(analysis)


def test_an_engine_that_stands_still() -> None:
    same = vllm_page(running=3, waiting=2, tokens=500, steps=70)
    analysis = watched(same, same)
    assert rules(analysis)[0] == "serving.stalled"
    assert analysis.findings[0].title.startswith("3 requests run and 2 wait, and no step ended")


def test_an_engine_that_counts_at_the_end_of_a_request_does_not_stand_still() -> None:
    busy = {"sglang:num_running_reqs": 3, "sglang:generation_tokens_total": 500}
    analysis = watched(page(busy), page(busy))
    assert rules(analysis) == []
    assert [c.status for c in analysis.checks if c.rule == "serving.stalled"] == ["not_checked"]


def test_no_traffic_is_said() -> None:
    idle = vllm_page(running=0, tokens=500, ended=30)
    analysis = watched(idle, idle)
    assert analysis.idle
    assert rules(analysis) == []
    assert watch_answer(analysis) == (
        "Nothing was served in 10.0 s: no request ran or waited, and no token came."
    )
    assert {check.status for check in analysis.checks} == {"not_checked"}


def test_uneven_gaps_are_told_by_their_buckets() -> None:
    name = "vllm:inter_token_latency_seconds"
    busy = {"vllm:num_requests_running": 10.0, "vllm:num_requests_waiting": 0.0}

    def gaps(*counts: int) -> str:
        return page(busy, {name: (counts, 1.0 * sum(counts))}, VLLM_LABELS)

    uneven = watched(gaps(0, 0, 0, 0, 0, 0), gaps(90, 0, 0, 10, 0, 0))
    assert rules(uneven) == ["serving.token_gaps"]
    near = watched(gaps(0, 0, 0, 0, 0, 0), gaps(90, 10, 0, 0, 0, 0))
    assert rules(near) == []


def test_aborted_requests_and_thrown_away_drafts() -> None:
    def with_aborts(aborts: float, drafted: float) -> Mapping[str, float]:
        return {
            'vllm:request_success_total{engine="0",finished_reason="abort"}': aborts,
            "vllm:spec_decode_num_draft_tokens_total": drafted,
            "vllm:spec_decode_num_accepted_tokens_total": drafted * 0.3,
        }

    analysis = watched(
        vllm_page(running=10, extra=with_aborts(0, 0)),
        vllm_page(running=10, tokens=900, ended=20, extra=with_aborts(5, 1000)),
    )
    assert rules(analysis) == ["serving.aborted", "serving.speculation"]
    assert analysis.findings[0].title == "5 of 25 requests that ended were aborted"
    assert analysis.findings[1].title.startswith("30 % of the tokens")


def test_triton_tells_means_alone() -> None:
    def triton(count: int) -> str:
        labels = '{model="m",version="1"}'
        values = {
            "nv_inference_request_success": count,
            "nv_inference_request_duration_us": 500_000.0 * count,
            "nv_inference_queue_duration_us": 300_000.0 * count,
            "nv_inference_pending_request_count": 4,
        }
        return page(values, labels=labels)

    analysis = watched(triton(0), triton(10))
    times = analysis.window.times["end_to_end"]
    assert times is not None
    assert (times.mean_ns, times.p50) == (500_000_000, None)
    assert rules(analysis) == ["serving.queue"]
    assert "instance_group" in analysis.findings[0].advice


def test_what_an_engine_does_not_tell_is_absent_and_never_zero() -> None:
    analysis = watched(page({"tgi_queue_size": 0}), page({"tgi_queue_size": 0}))
    assert {"kv_cache_usage", "time_to_first_token", "preemptions"} <= set(analysis.absent)
    assert set(analysis.absent) <= CONCEPT_WORDS.keys()
    text = render_watch(analysis, width=100)
    assert "Not told by TGI: " in text
    assert "KV-cache usage" in text


def test_text_of_a_server_is_inert() -> None:
    name = '{model_name="\x1b[31mred\\n"}'
    pages = [page({"vllm:num_requests_running": 1.0}, labels=name) for _ in range(2)]
    text = render_watch(watched(*pages), width=100)
    assert "\x1b" not in text
    assert "red" in text


def test_a_reading_without_anything_makes_no_number() -> None:
    window = make_window((Reading(0), Reading(5 * SECOND_NS)))
    assert (window.levels, window.counts, window.times) == ({}, {}, {})

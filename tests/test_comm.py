"""Collectives of one rank: what they are, how many bytes, exposed or hidden, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.make_traces import TraceMaker
from tests.stripped import keep_rows
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.analyzers.rules.comm import without_waiting
from tracer.exporters.change import instruction
from tracer.exporters.json_report import to_report
from tracer.exporters.text import render_text
from tracer.findings import Finding
from tracer.sources import open_source

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def comm_findings(analysis: Analysis) -> dict[str, Finding]:
    """The findings on communication by rule."""
    return {f.rule: f for f in analysis.findings if f.rule.startswith("comm.")}


def status(analysis: Analysis, rule: str) -> str:
    """What a rule could say."""
    return next(check.status for check in analysis.checks if check.rule == rule)


# --- exposed and hidden (case 25) ----------------------------------------------------------------


def overlap_trace(stream: int, begin: float, end: float) -> Analysis:
    """Compute of 0 to 100 ms and from `end` on, a collective between, in milliseconds."""
    maker = TraceMaker()
    maker.launch("gemm", start=0, run=(1_000, 101_000), operator="aten::mm")
    maker.launch(ALL_REDUCE, start=100, run=(begin * 1000, (begin + 80) * 1000), stream=stream)
    maker.launch("gemm", start=200, run=(end * 1000, (end + 60) * 1000), operator="aten::mm")
    return analyze(maker.build())


def test_half_of_a_collective_is_hidden() -> None:
    analysis = overlap_trace(stream=20, begin=61, end=141)
    (row,) = analysis.collectives.to_dict("records")
    assert (row["exposed_ns"], row["overlapped_ns"]) == (40_000_000, 40_000_000)
    (finding,) = comm_findings(analysis).values()
    assert finding.rule == "comm.exposed"
    assert finding.cost_ns == 40_000_000
    assert finding.severity == "critical"
    assert status(analysis, "comm.same_stream") == "clear"


def test_one_stream_cannot_overlap() -> None:
    analysis = overlap_trace(stream=7, begin=101, end=181)
    (finding,) = comm_findings(analysis).values()
    assert finding.rule == "comm.same_stream"
    assert finding.cost_ns == 80_000_000
    assert finding.detail["stream"] == 7
    assert "overlap" in finding.title
    assert status(analysis, "comm.exposed") == "clear"
    assert max(analysis.findings, key=lambda f: f.cost_ns or 0).rule == "comm.same_stream"


def test_two_compute_streams_by_turns_leave_no_idle() -> None:
    maker = TraceMaker()
    for k in range(4):
        run = (50.0 * k, 50.0 * (k + 1))
        maker.launch("gemm", start=k, run=run, stream=7 + k % 2)
    analysis = analyze(maker.build())
    assert analysis.window.idle_ns == 0
    assert comm_findings(analysis) == {}
    assert status(analysis, "comm.exposed") == "clear"


def test_small_copies_on_the_stream_of_a_library_are_no_compute() -> None:
    maker = TraceMaker()
    maker.launch("gemm", start=0, run=(10, 1000), operator="aten::mm")
    maker.launch("elementwise_kernel", start=5, run=(1000, 1010), stream=20)
    maker.launch(ALL_REDUCE, start=10, run=(1010, 1500), stream=20)
    assert set(comm_findings(analyze(maker.build()))) == {"comm.exposed"}


def test_a_little_exposed_is_no_finding() -> None:
    maker = TraceMaker()
    maker.launch("gemm", start=0, run=(10, 10_000), operator="aten::mm")
    maker.launch(ALL_REDUCE, start=10, run=(9_000, 10_020), stream=20)
    assert comm_findings(analyze(maker.build())) == {}


def test_the_first_call_of_a_window_is_noted_and_costs_nothing() -> None:
    maker = TraceMaker()
    begin = 0.0
    for k in range(5):
        length = 100_000 if k == 0 else 100
        maker.launch("gemm", start=begin, run=(begin + 10, begin + 300), operator="aten::mm")
        run = (begin + 300, begin + 300 + length)
        event = maker.launch(ALL_REDUCE, start=begin + 20, run=run, stream=20)
        maker.side("collectives", event, op="allreduce", group="0", in_elements=8, dtype="Float")
        begin += 300 + length + 50
    analysis = analyze(maker.build())
    assert "comm.window_start" in {note.rule for note in analysis.notes}
    exposed = comm_findings(analysis).get("comm.exposed")
    assert exposed is None or (exposed.cost_ns or 0) <= 4 * 100_000


def test_waiting_leaves_the_finding_when_it_is_known() -> None:
    analysis = overlap_trace(stream=7, begin=101, end=181)
    finding = comm_findings(analysis)["comm.same_stream"]
    capacity = analysis.window.capacity_ns
    left = without_waiting(finding, 60_000_000, capacity, [3])
    assert left is not None
    assert left.cost_ns == 20_000_000
    assert "waiting for rank 3" in left.title
    assert left.detail["exposed_wire_ns"] == 20_000_000
    assert without_waiting(finding, 80_000_000, capacity, [3]) is None


# --- what they are (cases 21 and 22) -------------------------------------------------------------


def one_of_two_ranks(lasts_us: list[float], size: int) -> Finding:
    """A rank of two whose calls last so long."""
    maker, now = TraceMaker(), 0.0
    for lasts in lasts_us:
        maker.launch("gemm", start=now, run=(now + 10, now + 30), operator="aten::mm")
        event = maker.launch(ALL_REDUCE, start=now + 1, run=(now + 30, now + 30 + lasts))
        maker.side(
            "collectives",
            event,
            op="allreduce",
            dtype="BFloat16",
            in_elements=size // 2,
            out_elements=size // 2,
            group="0",
        )
        now += 100 + lasts
    return comm_findings(analyze(maker.build(world_size=2)))["comm.same_stream"]


@pytest.mark.parametrize(
    ("lasts_us", "size", "waits"),
    [
        ([400.0] * 20, 8192, True),  # few bytes
        ([20.0] * 10 + [200.0] * 20, 1 << 24, True),  # some have not to wait
        ([400.0] * 20, 1 << 26, False),
        ([20.0] * 20 + [5000.0], 8192, False),  # once
    ],
)
def test_calls_that_can_only_wait_are_told_from_sending(
    lasts_us: list[float], size: int, waits: bool
) -> None:
    finding = one_of_two_ranks(lasts_us, size)
    assert finding.advice.startswith("Compare the ranks with `tracer ranks`") is waits
    assert "tracer ranks" in finding.advice
    told = without_waiting(finding, 0, 1)
    assert told is not None
    assert "tracer ranks" not in told.advice


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL()", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>()", "all_reduce"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>()", "all_reduce"),
        ("void deep_ep::internode::dispatch<false, 8>(int4*)", "expert_parallel"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8>()", "expert_parallel"),
    ],
)
def test_operations_by_name(name: str, op: str) -> None:
    maker = TraceMaker()
    maker.launch(name, start=0, run=(10, 60), stream=20)
    (row,) = analyze(maker.build()).collectives.to_dict("records")
    assert (row["op"], row["bytes"]) == (op, -1)


@pytest.mark.parametrize(
    "name",
    [
        "_combined_routing_compute",
        "_combined_routing_memset",
        "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<int*>>()",
        "void moe::dev::routing::routingIndicesClusterKernel<float>()",
    ],
)
def test_names_that_only_sound_like_it(name: str) -> None:
    maker = TraceMaker()
    maker.launch(name, start=0, run=(10, 60))
    assert not len(analyze(maker.build()).collectives)


def test_the_range_around_decides_before_the_name() -> None:
    maker = TraceMaker()
    maker.annotation("nccl:all_to_all", 0, 20)
    maker.launch("ncclKernel_SendRecv_RING_SIMPLE()", start=5, run=(30, 60), stream=20)
    (row,) = analyze(maker.build()).collectives.to_dict("records")
    assert row["op"] == "all_to_all"


def test_one_range_is_one_collective() -> None:
    """Copies and kernels inside a range of the library make one call, of the time of all."""
    maker = TraceMaker()
    maker.annotation("nccl:_all_gather_base", 0, 50)
    for k in range(3):
        maker.copy("device_to_device", 100, start=5.0 + 5 * k, run=(100.0 * k + 60, 100 * k + 90))
    maker.annotation("nccl:_all_gather_base", 400, 50)
    maker.copy("device_to_device", 100, start=405, run=(460, 490))
    first, second = analyze(maker.build()).collectives.to_dict("records")
    assert (first["start_ns"], first["end_ns"]) == (60_000, 290_000)
    assert (first["op"], first["exposed_ns"]) == ("all_gather", 90_000)
    assert second["exposed_ns"] == 30_000


@pytest.mark.parametrize(
    ("op", "dtype", "given", "made", "size"),
    [
        ("allreduce", "BFloat16", 10, 10, 20),
        ("_allgather_base", "Float", 10, 80, 320),
        ("_reduce_scatter_base", "Half", 80, 10, 160),
        ("all_to_all", "Byte", 7, 9, 7),
        ("allreduce", "Unknown", 10, 10, -1),
        ("allreduce", "Float", -1, -1, -1),
    ],
)
def test_bytes_from_metadata(op: str, dtype: str, given: int, made: int, size: int) -> None:
    maker = TraceMaker()
    event = maker.launch("ncclDevKernel_Generic()", start=0, run=(10, 60), stream=20)
    maker.side(
        "collectives", event, op=op, dtype=dtype, in_elements=given, out_elements=made, group="1"
    )
    (row,) = analyze(maker.build()).collectives.to_dict("records")
    assert row["bytes"] == size


def test_bytes_from_the_shapes_of_the_operator_around() -> None:
    maker = TraceMaker()
    operator = maker.operator("symm_mem::multimem_all_reduce_", 0, 20)
    maker.side(
        "shapes",
        operator,
        input_shapes="[[128,64],[],[]]",
        input_types='["c10::BFloat16","",""]',
    )
    maker.launch("multimem_all_reduce_kernel<c10::BFloat16>()", start=5, run=(30, 60))
    (row,) = analyze(maker.build()).collectives.to_dict("records")
    assert (row["bytes"], row["dtype"]) == (128 * 64 * 2, "BFloat16")


def test_sends_and_receives_know_their_peer() -> None:
    maker = TraceMaker()
    for k, op in enumerate(("send", "recv")):
        run = (100.0 * k + 10, 100.0 * k + 60)
        event = maker.launch("ncclDevKernel_SendRecv()", start=100.0 * k, run=run, stream=20)
        maker.side("collectives", event, op=op, peer=k + 1, group="pp", group_size=4)
    rows = analyze(maker.build()).collectives.to_dict("records")
    assert [(row["op"], row["direction"], row["peer"]) for row in rows] == [
        ("send_recv", "send", 1),
        ("send_recv", "recv", 2),
    ]


def test_a_single_group_needs_no_name_beside_each_call() -> None:
    maker = TraceMaker()
    maker.launch("multimem_all_reduce_kernel()", start=0, run=(10, 60))
    groups: Any = ({"pg_name": "0", "pg_size": 8, "ranks": list(range(8))},)
    (row,) = analyze(maker.build(process_groups=groups)).collectives.to_dict("records")
    assert (row["group"], row["group_size"]) == ("0", 8)


def test_gloo_ranges_are_the_work_and_their_operators_the_ones_who_asked() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    maker.operator("aten::mm", 10, 40)
    maker.operator("c10d::allreduce_", 60, 5)
    maker.annotation("gloo:all_reduce", 70, 100, tid=2)
    maker.annotation("ProfilerStep#1", 200, 100)
    maker.operator("aten::mm", 210, 40)
    analysis = analyze(maker.build())
    (row,) = analysis.collectives.to_dict("records")
    assert (row["op"], row["start_ns"], row["end_ns"]) == ("all_reduce", 70_000, 170_000)
    assert (row["step"], row["exposed_ns"]) == (0, 100_000)
    groups = to_report(analysis)["breakdown"]
    assert groups["communication"]["ns"] == 100_000
    assert sum(group["ns"] for group in groups.values()) == analysis.window.wall_ns


def test_one_rank_of_several_is_told_to_compare_them_before_it_overlaps() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    maker.operator("aten::mm", 10, 40)
    maker.operator("c10d::allreduce_", 60, 5)
    maker.annotation("gloo:all_reduce", 70, 100, tid=2)
    analysis = analyze(maker.build(rank=1, world_size=2))
    advice = comm_findings(analysis)["comm.exposed"].advice
    assert advice.startswith("Compare the ranks with `tracer ranks` first")
    assert advice.index("tracer ranks") < advice.index("async_op")
    assert render_text(analysis).startswith("Rank 1 of 2: ")
    alone = comm_findings(analyze(maker.build()))["comm.exposed"]
    assert "tracer ranks" not in alone.advice


def test_sums_of_calls_beside_each_other_say_that_they_are_more_than_the_time() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    maker.operator("aten::mm", 10, 40)
    maker.annotation("gloo:all_reduce", 60, 100, tid=2)
    alone = render_text(analyze(maker.build()))
    maker.annotation("gloo:all_reduce", 60, 100, tid=3)
    beside = render_text(analyze(maker.build()))
    assert "sums of calls, some exposed at once: 100 us of time in all" in beside
    assert "COLLECTIVES\n" in alone


def test_the_wait_of_compiled_code_is_no_call_of_its_own() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 200)
    maker.operator("_c10d_functional::all_reduce_", 10, 20)
    maker.operator("c10d::allreduce_", 12, 16)
    maker.operator("_c10d_functional::wait_tensor", 40, 140)
    maker.annotation("gloo:all_reduce", 70, 100, tid=2)
    analysis = analyze(maker.build())
    assert analysis.collectives["op"].tolist() == ["all_reduce"]
    groups = to_report(analysis)["breakdown"]
    assert groups["communication"]["ns"] == 140_000  # one waits while the other sends


# --- recordings ----------------------------------------------------------------------------------


def test_symmetric_memory_beside_nccl(shared: Path) -> None:
    analysis = analyze(open_source(shared / "traces" / "vllm-gptoss-eager-tp-b200.json.gz"))
    table = analysis.collectives
    length = table["end_ns"] - table["start_ns"]
    by_op = {str(op): int(rows.sum()) for op, rows in length.groupby(table["op"].astype(str))}
    assert table["op"].value_counts().to_dict() == {"all_reduce": 73, "all_gather": 1}
    assert by_op["all_reduce"] == pytest.approx(2_119_500, rel=0.001)
    assert by_op["all_gather"] == pytest.approx(22_000, rel=0.01)
    assert (table["bytes"] > 0).all()


def test_send_receive_kernels_under_an_all_to_all(shared: Path) -> None:
    path = shared / "traces" / "dlrm-a100-sendrecv-multistream.json.gz"
    ops = analyze(open_source(path)).collectives["op"].value_counts().to_dict()
    assert ops["all_to_all"] == 45
    assert "send_recv" not in ops


def test_buckets_of_data_parallel_training(shared: Path) -> None:
    analysis = analyze(open_source(shared / "h200x2" / "train_ddp_rank0.json.gz"))
    per_step = analysis.collectives.groupby("step").size().tolist()
    assert per_step == [6, 6]
    sizes = analysis.collectives["bytes"]
    assert 0.35e9 < sizes.min() < sizes.max() < 1.14e9
    assert set(comm_findings(analysis)) == {"comm.exposed"}
    row = to_report(analysis)["communication"]["collectives"][0]
    assert row["wait_ns"] is None
    assert row["busbw_bytes_per_s"] is None


ENGINE = "autograd::engine::evaluate_function: "
DDP_NODE, FSDP_NODE = "torch::autograd::AccumulateGrad", "RegisterPostBackwardFunctionBackward"


def accumulated(
    reduces: tuple[bool, ...], node: str = DDP_NODE, op: str = "allreduce", updates: int = 2
) -> Analysis:
    """Updates of several passes, 300 us each, of which some send their gradients: 100 us that
    nothing hides."""
    maker = TraceMaker()
    kernel = f"ncclDevKernel_{'AllReduce' if op == 'allreduce' else 'ReduceScatter'}_Sum_bf16"
    at = 0
    for update in range(updates):
        maker.annotation(f"ProfilerStep#{update}", at, 300 * len(reduces) + 98)
        for sends in reduces:
            maker.launch("gemm", start=at + 1, run=(at + 10, at + 100), operator="aten::mm")
            maker.operator(f"{ENGINE}MmBackward0", at + 40, 20)
            maker.launch("gemm", start=at + 45, run=(at + 100, at + 200), operator="aten::mm")
            maker.operator(f"{ENGINE}{node}", at + 70, 25)
            if sends:
                maker.launch(
                    kernel,
                    start=at + 80,
                    run=(at + 200, at + 300),
                    operator=f"c10d::{op}_",
                    stream=21,
                )
            at += 300
        maker.annotation("Optimizer.step#SGD.step", at + 10, 40)
        maker.launch("sgd", start=at + 20, run=(at + 30, at + 60), operator="aten::add_")
        at += 100
    return analyze(maker.build(world_size=2))


@pytest.mark.parametrize(
    ("node", "op"), [(DDP_NODE, "allreduce"), (FSDP_NODE, "reduce_scatter_tensor")]
)
def test_gradients_that_each_accumulated_pass_sends(node: str, op: str) -> None:
    (found,) = comm_findings(accumulated((True,) * 4, node, op)).values()
    assert "in each of 4 backward passes" in found.title
    assert "model.no_sync()" in instruction(found.advice)
    assert found.cost_ns is not None
    assert found.gain_ns == found.cost_ns * 3 // 4
    alone = without_waiting(found, found.cost_ns // 2, 2_600_000)
    assert alone is not None and "model.no_sync()" in alone.advice
    assert alone.gain_ns == found.gain_ns // 2


@pytest.mark.parametrize(
    ("reduces", "node"),
    [
        ((False, False, False, True), DDP_NODE),  # no_sync
        ((True,), DDP_NODE),
        ((True,) * 4, "AllReduceBackward0"),  # of tensor parallelism: each pass needs them
    ],
)
def test_gradients_that_the_last_pass_alone_sends(reduces: tuple[bool, ...], node: str) -> None:
    (found,) = comm_findings(accumulated(reduces, node)).values()
    assert "backward passes" not in found.title + found.advice
    assert found.gain_ns is None


def test_without_an_update_no_pass_is_known_to_be_the_last() -> None:
    (found,) = comm_findings(accumulated((True,) * 4, updates=1)).values()
    assert "in each of 4 backward passes" in found.title
    trace = accumulated((True,) * 4).trace
    kept = trace.events["name"].astype(str).to_numpy() != "Optimizer.step#SGD.step"
    (found,) = comm_findings(analyze(keep_rows(trace, kept))).values()
    assert found.gain_ns is None


# --- buffers of DistributedDataParallel -----------------------------------------------------------


def sends_buffers(kind: str, forward: str = "DistributedDataParallel.forward") -> Analysis:
    """Four steps: buffers are packed, sent and unpacked before the model is called, which itself
    broadcasts something."""
    maker = TraceMaker()
    for step in range(4):
        at = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 900)
        maker.annotation(forward, at + 5, 800)
        maker.operator("aten::flatten_dense_tensors", at + 10, 20)
        maker.operator("c10d::broadcast_", at + 40, 5)
        maker.annotation("gloo:broadcast", at + 50, 100, tid=2)
        maker.operator("aten::copy_", at + 160, 10)
        # Once it tells all ranks how gradients are put together.
        if step == 1:
            maker.operator("aten::empty", at + 200, 10)
            maker.operator("c10d::broadcast_", at + 220, 5)
            maker.annotation("gloo:broadcast", at + 230, 40, tid=2)
        maker.module("net", "Sequential", at + 300, 400)
        maker.module("net.1", kind, at + 310, 50)
        maker.operator("aten::mm", at + 320, 30)
        maker.operator("c10d::broadcast_", at + 400, 5)
        maker.annotation("gloo:broadcast", at + 410, 50, tid=2)
        maker.operator("aten::mm", at + 500, 100)
    return analyze(maker.build())


def test_buffers_sent_before_each_forward_pass_are_called_so() -> None:
    findings = [f for f in sends_buffers("BatchNorm1d").findings if f.rule == "comm.exposed"]
    buffers, other = sorted(findings, key=lambda finding: "packing_ns" not in finding.detail)
    assert (buffers.count, other.count) == (4, 5)
    assert buffers.title == (
        "DistributedDataParallel sends the buffers of the model before each forward pass: "
        "broadcast, 400 us in 4 calls, and 120 us to pack and unpack them"
    )
    assert buffers.cost_ns == buffers.gain_ns == 520_000 and other.gain_ns is None
    assert "broadcast_buffers=False" in buffers.advice and "SyncBatchNorm" in buffers.advice
    assert "running statistics of BatchNorm1d" in buffers.advice
    assert other.title.startswith("broadcast: 240 us in 5 calls")
    left = without_waiting(buffers, 100_000, 4_000_000)
    assert left is not None and left.cost_ns == left.gain_ns == 420_000
    assert "300 us on the wire and 100 us of waiting" in left.title
    assert left.advice == buffers.advice


def test_buffers_that_never_change_are_told_from_statistics() -> None:
    findings = [f for f in sends_buffers("RMSNorm").findings if "packing_ns" in f.detail]
    assert "do not change" in findings[0].advice and "SyncBatchNorm" not in findings[0].advice


def test_broadcasts_outside_of_data_parallel_are_no_buffers() -> None:
    analysis = sends_buffers("BatchNorm1d", forward="forward")
    assert not [f for f in analysis.findings if "packing_ns" in f.detail]

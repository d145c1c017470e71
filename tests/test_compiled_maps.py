"""Compiled code without a compiler: generated source read, calls laid beside what ran, modules
and shares, and the rule fallback.compile."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.make_traces import TraceMaker
from tests.test_attribution import parts
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze
from tracer.analyzers.facts.compiled_order import align_kernels, align_operators
from tracer.collectors.compiling import compile_log
from tracer.collectors.compiling.compile_log import CompileLog
from tracer.collectors.compiling.compiled_records import (
    CallRecord,
    Source,
    with_gradients,
    with_sums,
)
from tracer.collectors.compiling.compiled_source import read_source
from tracer.findings import Finding

SOURCE = """
async_compile = AsyncCompile()
triton_red_fused_add_rsqrt_0 = async_compile.triton('triton_red_fused_add_rsqrt_0', '''
import triton
def call(args):
    extern_kernels.mm(a, b, out=c)
''', device_str='cuda')
triton_poi_fused_silu_1 = async_compile.triton('triton_poi_fused_silu_1', '''x''')

def partition_0(args):
    arg1_1, buf0 = args
    args.clear()
    with torch.cuda._DeviceGuard(0):
        # Topologically Sorted Source Nodes: [x, linear_1], Original ATen: [aten.t, aten.mm]
        # [Provenance debug handles] extern_kernels.mm:2
        extern_kernels.mm(buf0, reinterpret_tensor(arg1_1, (8, 8), (1, 8), 0), out=buf1)
        # [Provenance debug handles] triton_poi_fused_silu_1:3
        triton_poi_fused_silu_1.run(buf1, 64, stream=stream0)
    return (buf1, )

class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        assert_size_stride(arg0_1, (8, 8), (8, 1), 'input')
        # [Provenance debug handles] triton_red_fused_add_rsqrt_0:1
        triton_red_fused_add_rsqrt_0.run(arg0_1, buf0, 8, 8, stream=stream0)
        (buf1,) = self.partitions[0](partition0_args)
        buf2 = torch.ops.aten._scaled_dot_product_flash_attention.default(buf1, buf1, buf1)
        return (buf2, )

runner = Runner(partitions=[partition_0])
call = runner.call
"""


def test_calls_of_a_generated_module_in_order_with_its_partitions() -> None:
    module = read_source(SOURCE)
    assert module.inputs == ("arg0_1", "arg1_1")
    assert [(call.kernel, call.form, call.handle, call.inputs) for call in module.calls] == [
        ("triton_red_fused_add_rsqrt_0", "generated", 1, ("arg0_1",)),
        ("extern_kernels.mm", "extern", 2, ("arg1_1",)),
        ("triton_poi_fused_silu_1", "generated", 3, ()),
        ("torch.ops.aten._scaled_dot_product_flash_attention.default", "extern", 0, ()),
    ]
    assert module.calls[1].nodes == ("x", "linear_1")


def test_source_of_another_form_has_no_calls() -> None:
    assert read_source("def f(x):\n    return x\n").calls == ()


KERNELS = ["triton_a", "extern_kernels.mm", "extern_kernels.mm", "triton_b", "extern_kernels.mm"]
GENERATED = frozenset(("triton_a", "triton_b"))
SPLIT = "cublasLt::splitKreduce_kernel<32, 16, int>"


@pytest.mark.parametrize(
    ("names", "calls"),
    [
        (("triton_a", "nvjet_1", "nvjet_2", "triton_b", "nvjet_3"), [0, 1, 2, 3, 4]),
        (("triton_a", "nvjet_1", SPLIT, "nvjet_2", "triton_b", "nvjet_3"), [0, 1, 1, 2, 3, 4]),
        (("triton_a", "nvjet_1", "triton_b", "nvjet_3", SPLIT), [0, -1, 3, 4, 4]),
    ],
)
def test_kernels_of_a_replay_are_dealt_to_the_calls_between_generated_ones(
    names: tuple[str, ...], calls: list[int]
) -> None:
    assert align_kernels(KERNELS, GENERATED, names) == calls


REDUCE = "torch.ops._c10d_functional.all_reduce_.default"
WAIT = "torch.ops._c10d_functional.wait_tensor.default"
SUM = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_collectives_of_a_replay_go_to_their_calls_and_the_waits_have_none() -> None:
    kernels = ["triton_a", "extern_kernels.mm", "torch.ops.aten._flash.default"]
    kernels += ["extern_kernels.mm", REDUCE, WAIT, "triton_b", "extern_kernels.mm", REDUCE, WAIT]
    names = ["triton_a", "nvjet_1", SPLIT, "flash_fwd_kernel", "nvjet_2", SUM]
    names += ["triton_b", "nvjet_3", SPLIT, SUM]
    assert align_kernels(kernels, GENERATED, tuple(names)) == [0, 1, 1, 2, 3, 4, 6, 7, 7, 8]


def test_sums_over_ranks_serve_the_module_that_made_their_input() -> None:
    product = CallRecord("extern_kernels.mm", "extern", (), (Source("0.down", "Linear", ("mm",)),))
    calls = [CallRecord(kernel, "extern", (), ()) for kernel in (REDUCE, WAIT)]
    gather = CallRecord("torch.ops._c10d_functional.all_gather.default", "extern", (), ())
    found = with_sums([calls[0], product, *calls, gather, calls[1]])
    told = [[source.path for source in call.sources] for call in found]
    assert told == [[], ["0.down"], ["0.down"], ["0.down"], [], []]


def test_operators_are_laid_beside_calls_by_name() -> None:
    names = ("aten::empty", "triton_a", "aten::mm", "aten::mm", "triton_b", "aten::mm")
    assert align_operators(KERNELS, GENERATED, names) == [-1, 0, 1, 2, 3, 4]


ROOT = "the root"


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        (["", "down"], ["down", "down"]),
        (["down", ""], ["down", "down"]),
        (["up", "", "", "gate"], ["up", "up", "gate", "gate"]),
        (["up", "", ""], ["up", "up", ""]),  # three are no pairs
        ([ROOT, "lm_head"], ["lm_head", "lm_head"]),
    ],
)
def test_products_for_gradients_stand_in_pairs(known: list[str], wanted: list[str]) -> None:
    def call(kernel: str, path: str) -> CallRecord:
        form = "generated" if kernel == "triton_a" else "extern"
        sources = (Source(path.removeprefix(ROOT), "Linear"),) if path else ()
        return CallRecord(kernel, form, (), sources)

    apart = call("triton_a", "")
    calls = [apart, *(call("extern_kernels.mm", path) for path in known), apart]
    found = [one.sources[0].path if one.sources else "" for one in with_gradients(calls)]
    assert found == ["", *wanted, ""]


# --- a compiled graph in a recording -------------------------------------------------------------

NORM, ACTIVATION = "triton_red_fused_add_native_layer_norm_0", "triton_poi_fused_silu_1"
CALLS: list[tuple[str, str, list[tuple[str, str, list[str]]]]] = [
    (NORM, "generated", [("l.0", "Layer", ["add"]), ("l.0.norm", "RMSNorm", ["pow", "rsqrt"])]),
    ("extern_kernels.mm", "extern", [("l.0.attn.q", "Linear", ["mm"])]),
    ("extern_kernels.mm", "extern", [("l.0.mlp.up", "Linear", ["mm"])]),
    (ACTIVATION, "generated", [("l.0.mlp", "MLP", ["silu"])]),
]
PARTS = [
    ("other", "norm", "compiled"),
    ("attention", "projection", "compiled"),
    ("ffn", "projection", "compiled"),
    ("ffn", "activation", "compiled"),
]
AROUND = [("l.0", "Layer"), ("l.0.attn", "Attention"), ("l.0.mlp", "MLP"), ("l.0.norm", "RMSNorm")]


def describe_graph(maker: TraceMaker, key: str = "fkey", root: tuple[str, str] = ("", "")) -> None:
    """The tables of one compiled graph."""
    maker.side(
        "compiled_graphs",
        graph=0,
        key=key,
        backward=0,
        basis="provenance",
        root=root[0],
        root_type=root[1],
    )
    for path, kind in AROUND:
        maker.side("compiled_modules", graph=0, call=-1, path=path, type=kind, operators="[]")
    for place, (kernel, form, modules) in enumerate(CALLS):
        maker.side("compiled_calls", graph=0, call=place, kernel=kernel, form=form, operators="[]")
        for path, kind, operators in modules:
            maker.side(
                "compiled_modules",
                graph=0,
                call=place,
                path=path,
                type=kind,
                operators=json.dumps(operators),
            )


def run_graph(maker: TraceMaker, at: float, key: str = "fkey", norm: str = NORM) -> None:
    """One call of that graph, each kernel 10 us."""
    maker.annotation(f"## Call CompiledFxGraph {key} ##", at, 100)
    for place, (name, operator) in enumerate(
        ((norm, norm), ("nvjet_q", "aten::mm"), ("nvjet_up", "aten::mm"), (ACTIVATION, ACTIVATION))
    ):
        start = at + 2 + 20 * place
        maker.launch(name, start=start, run=(start + 1, start + 11), operator=operator)


def test_kernels_go_to_the_modules_that_they_serve_and_share_their_time() -> None:
    maker = TraceMaker()
    describe_graph(maker)
    run_graph(maker, 0)
    analysis = analyze(maker.build())
    assert parts(analysis) == PARTS
    own = analysis.modules.set_index("path")["self_device_ns"]
    assert own[["l.0", "l.0.norm"]].tolist() == [5_000, 5_000]
    assert own.sum() == analysis.work["charged_ns"].sum() == 40_000
    row = analysis.kernels.set_index("name").loc[NORM]
    assert json.loads(str(row["modules"])) == ["l.*.norm", "l.*"]
    assert json.loads(str(row["operators"])) == ["pow", "rsqrt", "add"]


def test_launches_that_write_no_operator_are_found_by_the_names_of_their_kernels() -> None:
    """Not every launcher writes one: a module in C++ does not, and one in Python while it rests."""
    maker = TraceMaker()
    describe_graph(maker)
    maker.annotation("## Call CompiledFxGraph fkey ##", 0, 100)
    for place, (name, operator) in enumerate(
        ((NORM, None), ("nvjet_q", "aten::mm"), ("nvjet_up", "aten::mm"), (ACTIVATION, None))
    ):
        start = 2 + 20 * place
        maker.launch(name, start=start, run=(start + 1, start + 11), operator=operator)
    assert parts(analyze(maker.build())) == PARTS


def test_a_kernel_that_makes_the_loss_serves_it_whatever_else_it_holds() -> None:
    loss = "cpp_fused__log_softmax_arange_nll_loss_forward_view_2"
    maker = TraceMaker()
    maker.side("compiled_graphs", graph=0, key="fkey", backward=0, basis="provenance")
    for path, kind in AROUND:
        maker.side("compiled_modules", graph=0, call=-1, path=path, type=kind, operators="[]")
    maker.side(
        "compiled_modules", graph=0, call=0, path="l.0.attn", type="Attention", operators="[]"
    )
    maker.side("compiled_calls", graph=0, call=0, kernel=loss, form="generated", operators="[]")
    maker.annotation("## Call CompiledFxGraph fkey ##", 0, 20)
    maker.operator(loss, 1, 10)
    analysis = analyze(maker.build())
    assert [BUCKETS[bucket] for bucket in analysis.work["bucket"]] == [("other", "loss")]


def test_a_product_with_its_neighbours_fused_in_serves_the_module_of_the_product() -> None:
    product = "triton_tem_fused_add_mm_mul_rsqrt_1"
    maker = TraceMaker()
    maker.side("compiled_graphs", graph=0, key="fkey", backward=0, basis="provenance")
    for path, kind in AROUND:
        maker.side("compiled_modules", graph=0, call=-1, path=path, type=kind, operators="[]")
    served = [("l.0.norm", "RMSNorm", ["rsqrt", "mul"]), ("l.0", "Layer", ["add"])]
    served.append(("l.0.attn.q", "Linear", ["t", "mm"]))
    for path, kind, operators in served:
        maker.side(
            "compiled_modules",
            graph=0,
            call=0,
            path=path,
            type=kind,
            operators=json.dumps(operators),
        )
    maker.side("compiled_calls", graph=0, call=0, kernel=product, form="generated", operators="[]")
    maker.annotation("## Call CompiledFxGraph fkey ##", 0, 100)
    maker.launch(product, start=2, run=(3, 13), operator=product)
    assert parts(analyze(maker.build())) == [("attention", "projection", "compiled")]


def test_what_does_not_divide_goes_to_the_first_module() -> None:
    maker = TraceMaker()
    describe_graph(maker)
    maker.annotation("## Call CompiledFxGraph fkey ##", 0, 100)
    for place, (name, operator) in enumerate(((NORM, NORM), (ACTIVATION, ACTIVATION))):
        start = 2 + 20 * place
        maker.launch(name, start=start, run=(start + 1, start + 1.005), operator=operator)
    own = analyze(maker.build()).modules.set_index("path")["self_device_ns"]
    assert own[["l.0.norm", "l.0", "l.0.mlp"]].tolist() == [3, 2, 5]


def test_code_compiled_for_one_layer_serves_its_like_under_their_own_names() -> None:
    maker = TraceMaker()
    describe_graph(maker, root=("l.0", "Layer"))
    maker.annotation("ProfilerStep#0", 0, 400)
    for layer in range(2):
        maker.module(f"l.{layer}", "Layer", 200 * layer, 150)
        for child, kind in (("norm", "RMSNorm"), ("attn", "Attention"), ("mlp", "MLP")):
            maker.side("model_modules", path=f"l.{layer}.{child}", type=kind)
        for child in ("attn.q", "mlp.up"):
            maker.side("model_modules", path=f"l.{layer}.{child}", type="Linear")
        run_graph(maker, 200 * layer + 10)
    analysis = analyze(maker.build())
    assert parts(analysis) == PARTS * 2
    kernels = analysis.modules.set_index("path")["kernels"]
    assert kernels[["l.0", "l.1"]].tolist() == [4, 4]


def test_nodes_of_a_replayed_graph_are_found_by_the_generated_kernels() -> None:
    maker = TraceMaker()
    describe_graph(maker)
    maker.annotation("## Call CompiledFxGraph fkey ##", 0, 100)
    maker.host("runtime", "cudaGraphLaunch", 10, 5, correlation=50)
    for place, name in enumerate((NORM, "nvjet_q", "nvjet_up", ACTIVATION)):
        maker.device_row(name, 20 + 10 * place, 8, correlation=50)
    assert parts(analyze(maker.build())) == PARTS


def test_a_replay_whose_capture_the_compiler_times() -> None:
    """The first call records the graph under a range of the compiler's; the next one replays it."""
    maker = TraceMaker()
    describe_graph(maker)
    maker.annotation("## Call CompiledFxGraph fkey ##", 0, 200)
    maker.operator("CUDAGraphNode.record (dynamo_timed)", 5, 190)
    maker.host("runtime", "cudaStreamBeginCapture", 10, 1)
    for place, operator in enumerate((NORM, "aten::mm", "aten::mm", ACTIVATION)):
        start = 20 + 30 * place
        maker.operator(operator, start, 20)
        maker.host("runtime", "cudaLaunchKernel", start + 5, 5, correlation=900 + place)
    maker.host("runtime", "cudaStreamEndCapture", 180, 1)
    maker.annotation("## Call CompiledFxGraph fkey ##", 300, 100)
    maker.operator("aten::empty", 302, 2)
    maker.host("runtime", "cudaGraphLaunch", 310, 5, correlation=50)
    for place, name in enumerate((NORM, "nvjet_q", "nvjet_up", ACTIVATION)):
        maker.device_row(name, 320 + 10 * place, 8, correlation=50)
    analysis = analyze(maker.build())
    assert parts(analysis) == PARTS
    assert "trace.compiled_disagrees" not in rules(analysis)


def rules(analysis: Analysis) -> list[str]:
    return [note.rule for note in analysis.notes if note.rule.startswith("trace.compiled")]


def test_a_graph_with_other_kernels_is_not_believed() -> None:
    maker = TraceMaker()
    describe_graph(maker)
    run_graph(maker, 0, norm="triton_red_fused_something_else_7")
    analysis = analyze(maker.build())
    assert "compiled" not in {how for *_, how in parts(analysis)}
    assert rules(analysis) == ["trace.compiled_disagrees"]


def test_a_graph_that_was_not_seen_is_said() -> None:
    maker = TraceMaker()
    describe_graph(maker)
    run_graph(maker, 0, key="fother")
    assert rules(analyze(maker.build())) == ["trace.compiled_unknown"]


def test_copies_into_a_replayed_graph_are_no_optimizer() -> None:
    maker = TraceMaker()
    maker.annotation("## Call CompiledFxGraph fkey ##", 0, 100)
    copier = "void at::native::multi_tensor_apply_kernel<at::native::CopyFunctor<float>>"
    maker.launch(copier, start=10, run=(12, 13), operator="aten::_foreach_copy_")
    assert parts(analyze(maker.build())) == [("other", "unattributed", "none")]


# --- what the compiler did -----------------------------------------------------------------------


def compile_event(maker: TraceMaker, kind: str, start: float, end: float, **more: Any) -> None:
    columns = {"compile_id": "0/0", "file": "model.py", "line": 7, "function": "forward", **more}
    start_ns, end_ns = (maker.base_ns + round(time * 1000) for time in (start, end))
    maker.side("compile_events", kind=kind, start_ns=start_ns, end_ns=end_ns, **columns)


def compiled_trace(detail: str | None = "modules", *, events: bool = True) -> Analysis:
    """Three steps of which the second and third compile again."""
    maker = TraceMaker()
    for step in range(3):
        at = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1000)
        maker.operator("Torch-Compiled Region: 0/0", at + 10, 900)
        maker.launch("k", start=at + 20, run=(at + 25, at + 100))
        if events and step:
            compile_event(maker, "recompile", at + 200, at + 700, reason="0/0: size changed")
        maker.launch("k", start=at + 800, run=(at + 805, at + 900))
    if events:
        compile_event(maker, "graph_break", 150, 150, reason="call of print", line=12)
        compile_event(maker, "cudagraph_skip", 160, 160, reason="mutated inputs")
    return analyze(maker.build(detail=detail))


def fallbacks(analysis: Analysis) -> dict[str, Finding]:
    found = [f for f in analysis.findings if f.rule == "fallback.compile"]
    return {f.detail["cause"]: f for f in found}


def test_breaks_recompilations_and_skips_have_reason_and_line() -> None:
    found = fallbacks(compiled_trace())
    assert sorted(found) == ["cudagraph-skip", "graph-break", "recompile"]
    broken = found["graph-break"]
    assert (broken.where.file, broken.where.line, broken.steps) == ("model.py", 12, (0,))
    assert "call of print" in broken.title
    again = found["recompile"]
    assert (again.count, again.steps) == (2, (1, 2))
    assert again.detail["host_ns"] == 1_000_000
    (costs,) = (f for f in compiled_trace().findings if f.rule == "gap.compile")
    assert costs.cost_ns == costs.gain_ns == 1_000_000
    assert "mutated inputs" in found["cudagraph-skip"].title


def test_compiling_again_gains_no_more_than_it_costs() -> None:
    maker = TraceMaker()
    for step in range(3):
        at = 1000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1000)
        maker.operator("entire_frame_compile (dynamo_timed)", at + 100, 620)
        maker.launch("k", start=at + 20, run=(at + 25, at + 100))
        compile_event(maker, "recompile" if step else "compile", at + 200, at + 700, reason="x")
        maker.launch("k", start=at + 800, run=(at + 805, at + 900))
    analysis = analyze(maker.build(detail="modules"))
    (compiled,) = (f for f in analysis.findings if f.rule == "gap.compile")
    assert (compiled.cost_ns or 0) > 1_500_000
    assert compiled.gain_ns == 1_000_000
    assert fallbacks(analysis)["recompile"].detail["counted_in"] == "gap.compile"


def test_the_backward_of_each_version_counts_as_compiling_it_again() -> None:
    maker = TraceMaker()
    for step in range(3):
        at, number = 1000 * step, f"0/{step}"
        maker.annotation(f"ProfilerStep#{step}", at, 1000)
        maker.operator("entire_frame_compile (dynamo_timed)", at + 200, 500)
        maker.launch("k", start=at + 20, run=(at + 25, at + 100))
        kind = "recompile" if step else "compile"
        compile_event(maker, kind, at + 200, at + 500, reason="x", compile_id=number)
        compile_event(maker, "backward", at + 500, at + 700, compile_id=number)
        maker.launch("k", start=at + 800, run=(at + 805, at + 900))
    analysis = analyze(maker.build(detail="modules"))
    (compiled,) = (f for f in analysis.findings if f.rule == "gap.compile")
    assert (compiled.cost_ns, compiled.gain_ns) == (1_500_000, 1_000_000)
    assert "compiled again 2 times" in compiled.title
    assert "Compiling again took 1 ms" in (compiled.advice or "")


def test_compiling_that_no_range_shows_is_still_compiling() -> None:
    idle = compiled_trace().gaps
    compiling = idle[idle["cause"] == "compile"]
    assert (compiling["end_ns"] - compiling["start_ns"]).sum() == 1_000_000


def test_what_could_be_looked_at_is_said() -> None:
    def status(analysis: Analysis) -> str:
        return next(c.status for c in analysis.checks if c.rule == "fallback.compile")

    assert status(compiled_trace()) == "found"
    assert status(compiled_trace(events=False)) == "clear"
    assert status(compiled_trace(detail=None, events=False)) == "not_checked"
    assert status(analyze(TraceMaker().build())) == "clear"


def test_one_recompilation_is_the_way_of_dynamic_shapes() -> None:
    maker = TraceMaker()
    maker.operator("Torch-Compiled Region: 0/1", 0, 900)
    maker.launch("k", start=20, run=(25, 100))
    compile_event(maker, "recompile", 200, 700, reason="0/0: size changed", compile_id="0/1")
    assert fallbacks(analyze(maker.build(detail="modules"))) == {}


def again(*reasons: str) -> Finding:
    """What is said of a function that is compiled once more for each reason."""
    maker = TraceMaker()
    maker.operator("Torch-Compiled Region: 0/1", 0, 900)
    maker.launch("k", start=20, run=(25, 100))
    for number, reason in enumerate(reasons):
        compile_event(maker, "recompile", 200 + 10 * number, 205 + 10 * number, reason=reason)
    return fallbacks(analyze(maker.build(detail="modules")))["recompile"]


def test_the_guard_that_failed_most_often_is_the_reason() -> None:
    grew = "0/{}: tensor 'ids' size mismatch at index 1. expected {}, actual {}"
    sizes = [grew.format(n, 12 + n, 13 + n) for n in range(1, 5)]
    found = again("0/0: tensor 'ids' dtype mismatch. expected Long, actual Int", *sizes)
    span = "tensor 'ids' size mismatch at index 1: 5 sizes from 13 to 17"
    assert found.title == f"forward is compiled again 5 times, 4 of them: {span}"
    other = "1 of 5: tensor 'ids' dtype mismatch. expected Long, actual Int"
    assert found.detail["reasons"] == [f"4 of 5: {span}", other]
    assert other in (found.advice or "")


def test_guards_at_other_places_are_other_reasons() -> None:
    dimensions = again(*(f"0/0: tensor 'x' size mismatch at index {n}. expected 1" for n in (0, 1)))
    layers = again(*(f"0/0: self.layers[{n}].scale == 2.5" for n in range(3)))
    assert [len(found.detail["reasons"]) for found in (dimensions, layers)] == [2, 3]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (("0/1: n == 9", "0/0: n == 10"), "n == 9 to 10"),
        (("0/1: mode == 'a'", "0/0: mode == 'b'"), "mode == 'a', 'b'"),
        (("0/1: ___check_obj_id(f, 94422143243264)", "0/0: ___check_obj_id(f, 94422143243333)"),
         "___check_obj_id(f, 94422143243264)"),
    ],
)  # fmt: skip
def test_values_of_one_guard_are_one_reason(told: tuple[str, ...], said: str) -> None:
    assert again(*told).title == f"forward is compiled again 2 times: {said}"


def limited(limit_at: float, versions: list[str | None], others: int = 0) -> Finding:
    """Steps of 1 ms, each with the version of the code that it runs, of 3 ms without one."""
    maker = TraceMaker(base_ns=10**9)
    at = 0
    for step, version in enumerate(versions):
        lasts = 1000 if version else 3000
        maker.annotation(f"ProfilerStep#{step}", at, lasts)
        if version:
            maker.operator(f"Torch-Compiled Region: {version}", at + 10, 900)
        maker.launch("k", start=at + 20, run=(at + 25, at + lasts - 10))
        at += lasts
    reason = "recompile_limit (8); 0/7: n == 3"
    for place in range(1 + others):
        more = {"reason": reason, "compile_id": f"{place}/8", "function": f"f{place}"}
        compile_event(maker, "recompile_limit", limit_at, limit_at + 5, **more)
    found = [f for f in analyze(maker.build(detail="modules")).findings if f.where.function == "f0"]
    (limit,) = found
    return limit


def test_steps_after_the_recompile_limit_run_eagerly() -> None:
    found = limited(2010, ["0/6", "0/7", None, "0/7", "1/0", None])
    assert (found.severity, found.steps) == ("critical", (2, 4, 5))
    said = "f0 is compiled no more, recompile_limit (8) was reached"
    assert (
        found.title == f"{said}: from step 2 on 3 of 4 steps ran it eagerly, 3 ms instead of 1 ms"
    )
    assert "failed last: n == 3." in (found.advice or "")


def test_steps_that_ran_compiled_tell_what_the_limit_costs() -> None:
    found = limited(3010, ["0/6", "0/7", "0/7", None, None])
    assert (found.cost_ns, found.gain_ns, found.ratio) == (4_000_000, 4_000_000, 4 / 9)
    assert (found.detail["eager_ns"], found.detail["compiled_ns"]) == (3_000_000, 1_000_000)
    assert "not known" not in found.advice


@pytest.mark.parametrize(
    ("versions", "others", "why"),
    [
        (["0/6", "0/7", None, None], 0, "2 steps ran the compiled code"),
        (["0/6", "0/7", "0/7", None, None], 1, "other functions reached a limit"),
    ],
)
def test_a_limit_whose_cost_is_not_known_says_why(
    versions: list[str | None], others: int, why: str
) -> None:
    found = limited(3010, versions, others)
    assert (found.severity, found.cost_ns, found.gain_ns) == ("warning", None, None)
    assert f"What it costs is not known: {why}" in found.advice


def test_a_limit_reached_before_the_recording_is_said() -> None:
    found = limited(-900, ["0/7", None])
    assert (found.severity, found.steps) == ("warning", (1,))
    assert "was reached before this recording: from step 1 on" in found.title


def test_code_given_up_on_earlier_need_not_run_here() -> None:
    found = limited(-900, [None, "1/0"])
    assert (found.severity, found.steps) == ("info", ())
    assert found.title.endswith("was reached before this recording")


def test_earlier_breaks_count_only_for_code_that_runs_here() -> None:
    maker = TraceMaker(base_ns=10**9)
    maker.operator("Torch-Compiled Region: 1/0", 0, 900)
    maker.launch("k", start=20, run=(25, 100))
    compile_event(maker, "graph_break", -900, -900, reason="one", compile_id="1/0")
    compile_event(maker, "graph_break", -900, -900, reason="two", compile_id="5/0")
    found = analyze(maker.build(detail="modules")).findings
    assert [f.detail["reason"] for f in found if f.rule == "fallback.compile"] == ["one"]


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps what other tests compiled, for as long as the process lives."""
    monkeypatch.setattr(compile_log, "kept_metrics", list)


@pytest.mark.usefixtures("nothing_compiled")
def test_a_skip_that_the_compiler_finds_when_its_code_runs_is_kept_once() -> None:
    skipped = "skipping cudagraphs due to mutated inputs (1 instances). Found from : \n  line 3"
    log = CompileLog()
    log.start()
    try:
        logging.getLogger("torch._inductor.cudagraph_utils").warning(skipped)
        logging.getLogger("torch._inductor.cudagraph_utils").warning("Autotune: %s", "mm")
    finally:
        log.close()
    told = log.table()
    assert told["kind"].tolist() == ["cudagraph_skip"]
    assert "mutated inputs" in str(told["reason"].iloc[0])
    log.events.append(log._skips[0])  # the metrics of the compilation say the same
    assert len(log.table()) == 1


@pytest.mark.usefixtures("nothing_compiled")
def test_a_form_of_the_log_that_is_not_known_costs_nothing() -> None:
    log = CompileLog()
    for metadata in (None, {}, {"artifact": 3}, {"compilation_metrics": {"start_time_us": "x"}}):
        record = logging.LogRecord("torch.__trace", 10, "", 0, "", None, None)
        record.metadata = metadata
        log.emit(record)
    assert len(log.table()) == 0

"""What names tell: our own labelled names, the recorded ones, and the parts they are cut into."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from tracer.analysis import PARTS
from tracer.analyzers import kernel_names
from tracer.analyzers.names.kernel_table import CATEGORIES, TOKENS, KernelName, describe
from tracer.analyzers.names.name_rules import make_rules, read_table
from tracer.analyzers.names.operator_names import operator_role
from tracer.analyzers.names.symbols import (
    demangle,
    read_fused_name,
    read_symbol,
    short_name,
    split_words,
)

HERE = Path(__file__).parent

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{0}>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<{0}>, std::array<char*, 3ul>)"
)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def recorded(shared: Path) -> list[dict[str, str]]:
    return read_rows(shared / "kernels" / "kernel_names.csv")


# --- categories, tokens and operations


OWN_NAMES = read_rows(HERE / "kernel_names.csv")


@pytest.mark.parametrize("row", OWN_NAMES, ids=lambda row: row["kernel_name"][:60])
def test_names_of_many_engines_get_their_category(row: dict[str, str]) -> None:
    kernel = describe(row["kernel_name"])
    told = {
        "category": kernel.category,
        "library": kernel.library,
        "op": kernel.op,
        "token": kernel.token,
    }
    wanted = {key: row[key] for key in told if row[key]}
    assert {key: told[key] for key in wanted} == wanted


def test_names_of_rare_engines_mostly_get_their_category() -> None:
    # Labelled before the table had seen them: of these engines little else is known.
    result = kernel_names.score(read_rows(HERE / "kernel_names_rare.csv"))
    assert result.name_ratio >= 0.94, result.wrong
    assert result.false_communication == 0


def test_recorded_names_and_their_time_are_right(recorded: list[dict[str, str]]) -> None:
    certain = [row for row in recorded if row["label_confidence"] == "high"]
    result = kernel_names.score(certain)
    assert result.name_ratio >= 0.97, result.wrong[:10]
    assert result.time_ratio >= 0.99, result.wrong[:10]


def test_nothing_recorded_is_taken_for_communication_by_mistake(
    recorded: list[dict[str, str]],
) -> None:
    assert kernel_names.score(recorded).false_communication == 0


@pytest.mark.parametrize(
    "name",
    [
        "_combined_routing_compute",
        "_combined_routing_memset",
        "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>::Policy, long>()",
        "void moe::dev::routing::routingIndicesClusterKernel<moe::dev::routing::Params<float> >()",
        "triton_red_fused_all_reduce_add_mean_mul_pow_rsqrt_3",
        "void vllm::moe::compute_pplx_data<int>(int)",
        "scatter_reduce_kernel",
        "type_specialized_broadcast_kernel_launcher",
        "_combine_kernel",
        "mergeStatesAndDispatchKernel",
    ],
)
def test_look_alikes_are_no_communication(name: str) -> None:
    assert describe(name).category != "communication"


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("dpsk::ep::internode::dispatch<true, 4>(int)", "expert_parallel"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("void cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", "all_reduce"),
        ("void c10d::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", "all_reduce"),
        ("rcclGenericKernel<4, false>(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("void nvshmem::fcollect_on_stream_kernel(int)", "other"),
    ],
)
def test_communication_by_any_name(name: str, op: str) -> None:
    kernel = describe(name)
    assert (kernel.category, kernel.op, kernel.role) == (
        "communication",
        op,
        ("communication", op),
    )


def test_a_gemm_fused_with_a_collective_says_both() -> None:
    kernel = describe("fused_allgather_gemm_kernel")
    assert (kernel.category, kernel.token, kernel.op) == ("gemm", "GEMM", "all_gather")


@pytest.mark.parametrize(
    ("dtype", "token"),
    [("c10::BFloat16", "ADD"), ("float", "ADD"), ("long", "ELEMENTWISE"), ("int", "ELEMENTWISE")],
)
def test_only_a_floating_point_sum_is_a_residual(dtype: str, token: str) -> None:
    assert describe(ADD.format(dtype)).token == token


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<2u, float>(int)", "CORE"),
        ("void vllm::paged_attention_v1_kernel<float, (vllm::Fp8KVCacheDataType)0>(int)", "CORE"),
        ("void flashinfer::quantization::quantize_with_block_size<2>(int)", "QUANT"),
        ("create_flashinfer_kv_indices_triton", "META"),
        ("_per_token_group_quant_mla_deep_gemm_masked_fp8", "QUANT"),
        ("BatchQKApplyRotaryPosIdsCosSinCacheKernel", "ROPE"),
        ("_fwd_kernel_destindex_copy_kv", "CACHE"),
        ("deep_gemm::sm90_fp8_paged_mqa_logits<128>(int)", "CORE_AUX"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>(int)", "CORE_AUX"),
    ],
)
def test_words_of_attention_do_not_make_a_core(name: str, token: str) -> None:
    assert describe(name).token == token


def test_arguments_of_a_function_say_nothing() -> None:
    assert describe("void my_kernel<4>(flash_attn::Params, ncclComm*, Fp8KVCache)").category == (
        "other"
    )


@pytest.mark.parametrize(
    "name",
    ["", " ", "x", "Kernel", "?<>(", "_Z", "_ZN3", "_ZN99abc", "void ", "((((", "a::::b<<<>", "é"],
)
def test_a_name_never_seen_is_other(name: str) -> None:
    kernel = describe(name)
    assert kernel == KernelName(name)
    assert (kernel.category, kernel.token, kernel.role) == ("other", "OTHER", None)
    assert isinstance(kernel.short, str)


def test_cutting_a_name_anywhere_never_raises() -> None:
    for row in OWN_NAMES[::7]:
        name = row["kernel_name"]
        for end in range(0, len(name), 5):
            kernel = describe(name[:end])
            assert kernel.category in CATEGORIES
            assert isinstance(kernel.short + kernel.precision + kernel.architecture, str)


# --- marks


@pytest.mark.parametrize(
    ("name", "architecture", "precision", "flags"),
    [
        (
            "nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_splitK_coopA_NNT",
            "sm90",
            "fp16",
            {"split_k", "tensor_core"},
        ),
        ("nvjet_sm103_tst_64x8_64x16_1x4_h_bz_TNT", "sm103", "bf16", {"tensor_core"}),
        (
            "cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1",
            "sm75",
            "bf16",
            {"misaligned", "tensor_core"},
        ),
        (
            "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_64x3_tn_align16",
            "sm80",
            "bf16",
            {"tensor_core"},
        ),
        ("cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4", "sm80", "tf32", {"tensor_core"}),
        ("cutlass_80_simt_sgemm_128x32_8x5_nn_align1", "sm80", "fp32", {"misaligned", "simt_fp32"}),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4",
            "sm80",
            "fp32",
            {"simt_fp32"},
        ),
        ("volta_sgemm_128x64_nt", "sm70", "fp32", {"simt_fp32"}),
        ("void gemvNSP_kernel<__nv_bfloat16, 1>(int)", "", "bf16", {"gemv"}),
        ("Cijk_Alik_Bljk_F8BS_BH_MT256x256x128_MI16x16x1_CMS", "", "fp8", {"tensor_core"}),
        ("Cijk_Alik_Bljk_HHS_BH_MT64x64x32", "", "fp16", set[str]()),
        ("miopenSp3AsmConv_v30_3_1_gfx94x_fp32_f2x3", "gfx94x", "fp32", set[str]()),
        ("_w8a8_block_fp8_matmul", "", "fp8", set[str]()),
        ("awq_gemm_kernel", "", "int4", set[str]()),
        ("quantize_nf4_blockwise_kernel", "", "fp4", set[str]()),
    ],
)
def test_marks_of_a_gemm(name: str, architecture: str, precision: str, flags: set[str]) -> None:
    kernel = describe(name)
    assert (kernel.architecture, kernel.precision, set(kernel.flags)) == (
        architecture,
        precision,
        flags,
    )
    named = ("split_k", "gemv", "misaligned", "simt_fp32", "tensor_core")
    assert {flag for flag in named if getattr(kernel, flag)} == flags


# --- how names are cut


def test_words_of_both_spellings_agree() -> None:
    assert split_words("FusedAddRMSNormKernel") == split_words("fused_add_rms_norm_kernel")
    assert split_words("void::MoEGateKernel_v8") == "void::moe gate kernel v8"


def test_a_symbol_is_cut_at_its_brackets() -> None:
    symbol = read_symbol(
        "std::enable_if<(((8) > (0)))&&vllm::ok<float>::value, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, int)"
    )
    assert (symbol.name, symbol.arguments) == (
        "vllm::fused_add_rms_norm_kernel",
        "c10::BFloat16, 8",
    )


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0EEEvPT0_", "bfloat16"),
        ("_ZN2ck16tensor_operation12_GLOBAL__N_112kernel_gemm_xINS_4ABCDEEEv", "ABCD"),
        ("_Z13simple_kernelPfi", ""),
    ],
)
def test_mangled_names_are_read(mangled: str, name: str) -> None:
    readable = demangle(mangled)
    assert "_Z" not in readable
    assert "GLOBAL" not in readable
    assert name in readable


def test_a_mangled_name_keeps_what_it_mentions() -> None:
    assert demangle("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPF4siluEvi") == (
        "sgl_hip::activation::act_and_mul_kernel<__hip_bfloat16, silu>"
    )


VOCABULARY = frozenset(row["operator"] for row in read_table("fused_operators.csv"))


@pytest.mark.parametrize(
    ("name", "kind", "operators"),
    [
        (
            "triton_red_fused__to_copy__unsafe_view_add_mean_mul_pow_rsqrt_12",
            "red",
            ("_to_copy", "_unsafe_view", "add", "mean", "mul", "pow", "rsqrt"),
        ),
        (
            "triton_poi_fused_add_native_layer_norm_split_with_sizes_0",
            "poi",
            ("add", "native_layer_norm", "split_with_sizes"),
        ),
        ("triton_tem_fused_addmm_7", "tem", ("addmm",)),
        ("triton_poi_fused_0", "poi", ()),
        ("triton_poi_fused_mul_silu_3d4d5", "poi", ("mul", "silu")),
        ("cpp_fused__to_copy_gelu_2", "cpp", ("_to_copy", "gelu")),
        ("graph_0_cpp_fused_add_mul_1", "cpp", ("add", "mul")),
    ],
)
def test_fused_operators_are_read(name: str, kind: str, operators: tuple[str, ...]) -> None:
    fused = read_fused_name(name.replace("_3d4d5", "_3_0d1d2d"), VOCABULARY)
    assert fused is not None
    assert (fused.kind, fused.operators) == (kind, operators)


@pytest.mark.parametrize("name", ["triton_softmax_kernel", "fused_moe_kernel", "cpp_kernel"])
def test_other_kernels_have_no_fused_operators(name: str) -> None:
    assert read_fused_name(name, VOCABULARY) is None
    assert describe(name).fused_ops == ()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ADD.format("c10::BFloat16"), "vectorized_elementwise_kernel<CUDAFunctor_add<BFloat16>>"),
        (
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous "
                "namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() "
                "const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)"
            ),
            "vectorized_elementwise_kernel<silu_kernel>",
        ),
        (
            (
                "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
                "TensorListMetadata<2>, at::native::UnaryOpFunctor<float, 2, 1, 1>, "
                "at::native::Sqrt<float> >(int)"
            ),
            "multi_tensor_apply_kernel<UnaryOpFunctor<float, 2, 1, 1>>",
        ),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x64x128_MI16x16x1_SN_LDSB1",
            "Cijk_Alik_Bljk_BBS MT128x64x128",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(Params)",
            "cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>",
        ),
        (
            (
                "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>,"
                " Mainloop<4, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> > >, cute::tuple<"
                "cute::C<64>, cute::C<128>, cute::C<256> >, float> >(Params)"
            ),
            "cutlass::device_kernel<GemmUniversal 64x128x256>",
        ),
        ("triton_poi_fused_mul_silu_2", "triton_poi_fused_mul_silu_2"),
        ("attn_fwd.kd", "attn_fwd"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short
    assert describe(name).short == short


# --- the tables themselves


def test_the_kernel_table_uses_known_words() -> None:
    rows = list(read_table("kernel_names.csv"))
    decided = [row for row in rows if row["category"]]
    assert {row["category"] for row in decided} == set(CATEGORIES)
    assert {row["token"] for row in decided} <= set(TOKENS)
    assert {row["op"] for row in rows if row["op"]} <= set(PARTS["communication"])
    assert all(row["op"] for row in decided if row["category"] == "communication")
    assert all(row["library"] for row in rows if not row["category"])


def test_every_row_of_the_tables_has_only_its_columns() -> None:
    for file in ("kernel_names.csv", "kernel_marks.csv", "operator_names.csv"):
        assert all(isinstance(row["name"], str) for row in read_table(file))


def test_every_role_is_a_part() -> None:
    for row in read_table("kernel_names.csv"):
        role = KernelName("", category=row["category"], token=row["token"], op=row["op"]).role
        assert role is None or role[1] in PARTS[role[0]]


@pytest.mark.parametrize("file", ["kernel_names.csv", "kernel_marks.csv", "operator_names.csv"])
def test_cheap_tests_before_a_pattern_lose_nothing(file: str) -> None:
    operators = read_rows(HERE / "operator_names.csv")
    texts = [read_symbol(row["kernel_name"]).name_words for row in OWN_NAMES]
    texts += [row["kernel_name"][:400].lower() for row in OWN_NAMES]
    texts += [split_words(row["operator"]) for row in operators]
    for row in read_table(file):
        rules = make_rules(dict(row, body=""))
        whole = re.compile(row["name"])
        for text in texts:
            assert any(rule.fits(text) for rule in rules) == bool(whole.search(text)), (row, text)


# --- operators


@pytest.mark.parametrize(
    "row", read_rows(HERE / "operator_names.csv"), ids=lambda row: row["operator"]
)
def test_operators_tell_their_part(row: dict[str, str]) -> None:
    role = operator_role(row["operator"])
    assert role is not None
    assert (role.group, role.part) == (row["group"], row["part"])
    assert 0.5 <= role.confidence <= 1


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm",
        "aten::addmm",
        "aten::add",
        "aten::mul",
        "aten::copy_",
        "aten::_softmax",
        "aten::softmax",
        "aten::silu",
        "aten::argmax",
        "aten::topk",
        "aten::linear",
        "aten::_foreach_copy_",
        "AddmmBackward0",
        "SiluBackward0",
        "_LayerNormLinearBackward",
        "LayerNormLinearFn",
        "symm_mem::fused_all_gather_matmul",
        "_C::cutlass_scaled_mm",
        "_C::gptq_marlin_gemm",
        "_C::static_scaled_fp8_quant",
        "_C::get_scheduler_metadata",
        "sglang_profiler::common_alloc_paged_token_slots_decode_523",
        "bitsandbytes::gemm_4bit",
        "fast::hadamard_transform",
        "forward",
        "attention",
        "my attention step",
        "ProfilerStep#3",
        "step[DECODE bs=32]",
        "## forward:bottom_mlp ##",
        "module::model.layers.0.self_attn::LlamaAttention",
        "",
    ],
)
def test_operators_that_serve_anything_tell_nothing(name: str) -> None:
    assert operator_role(name) is None


def test_operator_parts_exist() -> None:
    for row in read_table("operator_names.csv"):
        if row["part"] and row["group"]:
            assert row["part"] in PARTS[row["group"]]
        assert not row["part"] or 0.5 <= float(row["confidence"]) <= 1


# --- the command


def test_the_command_writes_a_row_for_each_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "names.csv"
    path.write_text('kernel_name,note\n"void f<int, 2>(int)",a\nattn_fwd,b\n', encoding="utf-8")
    assert kernel_names.main([str(path)]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows == [
        ["kernel_name", "category", "library"],
        ["void f<int, 2>(int)", "other", ""],
        ["attn_fwd", "attention", ""],
    ]


def test_the_command_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "names.csv"
    path.write_text(
        "kernel_name,category,label_confidence,total_dur_us\n"
        "nvjet_sm90_tst,gemm_unknown,high,3e6\n"
        "attn_fwd,norm,high,1e6\n"
        "ncclKernel_AllReduce,other,low,\n",
        encoding="utf-8",
    )
    assert kernel_names.main(["--score", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        (
            "all labels: 1 of 3 names right (33.33%), 75.00% of 4.000 s recorded, "
            "1 false communication"
        ),
        (
            "label_confidence high: 1 of 2 names right (50.00%), 75.00% of 4.000 s recorded, "
            "0 false communication"
        ),
        "  attention for norm: attn_fwd",
    ]


@pytest.mark.parametrize(
    ("arguments", "content", "status", "message"),
    [
        ([], None, 2, "usage: "),
        (["--wrong", "names.csv"], None, 2, "usage: "),
        (["absent.csv"], None, 3, "absent.csv"),
        (["names.csv"], b"a,b\n1,2\n", 3, "no column 'kernel_name'"),
        (["--score", "names.csv"], b"kernel_name\nx\n", 3, "no column 'category'"),
        (["names.csv"], b"\xff\xfe\x00", 3, "names.csv"),
    ],
)
def test_the_command_says_what_is_wrong(
    arguments: list[str],
    content: bytes | None,
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "names.csv").write_bytes(content)
    assert kernel_names.main(arguments) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1

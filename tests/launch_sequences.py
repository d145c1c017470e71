"""Launch sequences of models, in words, as traces without any evidence but names and order.

A line such as `o: add norm a: gemm rope core` gives kernels and the group that each must get:
a attention, f FFN, o other, x communication. `gemm*3` repeats a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.make_traces import TraceMaker
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze
from tracer.events import Trace

GROUPS = {"a": "attention", "f": "ffn", "o": "other", "x": "communication"}


def _loop(functor: str) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, "
        "std::array<char*, 2ul> >(int)"
    )


def _reduction(operation: str) -> str:
    return (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        f"at::native::{operation}, unsigned int, float, 4, 4> >(int)"
    )


_BF16 = "c10::BFloat16"
EAGER: Mapping[str, str] = {
    "gemm": "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT",
    "splitk": "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)",
    "core": "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4> >(int)",
    "layernorm": "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel"
    f"<{_BF16}, float, false>(int)",
    "cast": "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}, std::array<char*, 2ul> >(int)",
    "square": _loop("(anonymous namespace)::pow_tensor_scalar_kernel_impl<float, float>"),
    "mean": _reduction("MeanOps<float, float, float, float>"),
    "sum": _reduction("func_wrapper_t<float, at::native::sum_functor<float, float, float> >"),
    "epsilon": _loop("CUDAFunctorOnSelf_add<float>"),
    "root": _loop("rsqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}"),
    "mul": _loop(f"BinaryFunctor<{_BF16}, {_BF16}, {_BF16}, at::native::binary_internal::"
                 "MulFunctor<float> >"),
    "neg": _loop("neg_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}"),
    "cat": "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::"
    "(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(int)",
    "add": _loop(f"CUDAFunctor_add<{_BF16}>"),
    "cos": _loop("cos_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}"),
    "sin": _loop("sin_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}"),
    "silu": _loop("(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}"),
    "gelu": _loop("GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)"),
    "sigmoid": _loop("sigmoid_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}"),
    "softmax": "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, "
    "false>(float*, float const*, int)",
    "topk": "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)",
    "sort": "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long>(int)",
    "grouped": "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::"
    "gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<cute::tuple<int> > > > >(int)",
    "gather": "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)",
    "index": "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::"
    "native::index_put_kernel_impl<at::native::OpaqueType<8> >(at::TensorIterator&)> >(int)",
    "argmax": _reduction("ArgMaxOps<float>"),
    "fill": _loop("FillFunctor<float>"),
    "where": _loop("(anonymous namespace)::where_kernel_impl(at::TensorIterator&)::{lambda()#1}"),
    "conv": "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64",
    "groupnorm": "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(int)",
}  # fmt: skip
VLLM: Mapping[str, str] = {
    "gemm": "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_TNT",
    "norm": "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)",
    "addnorm": "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
    "rope": "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
    "cache": "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, 0>(int)",
    "core": "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::"
    "CollectiveMainloopFwdSm90<2, cute::tuple<int> > > > >(int)",
    "mla": "void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64> >(int)",
    "combine": "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<int> > >(int)",
    "glu": "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>>(int)",
    "quant": "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)",
    "route": "void vllm::moe::topkGatingSoftmax<4, 128, 4, 16, 32, int>(float const*)",
    "align": "void vllm::moe::moe_align_block_size_kernel<int>(int*)",
    "experts": "fused_moe_kernel",
    "moesum": "void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
    "allreduce": "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
    "fusedreduce": "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot"
    "_lamport<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16>(int)",
    "conv1d": "_causal_conv1d_update_kernel",
    "scan": "_selective_scan_update_kernel",
    "delta": "fused_recurrent_gated_delta_rule_fwd_kernel",
    "gatednorm": "layer_norm_fwd_kernel",
    "embed": "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)",
    "argmax": EAGER["argmax"],
    "add": EAGER["add"],
    "sigmoid": EAGER["sigmoid"],
    "mul": EAGER["mul"],
    "copy": "Memcpy DtoD (Device -> Device)",
}  # fmt: skip
TENSORRT: Mapping[str, str] = {
    **VLLM,
    "norm": "void tensorrt_llm::kernels::generalRmsNorm<__nv_bfloat16, float, false>(int)",
    "addnorm": "void tensorrt_llm::kernels::fusedAddRMSNormKernel<__nv_bfloat16, 8>(int)",
    "rope": "void tensorrt_llm::kernels::applyBiasRopeUpdateKVCacheV2<__nv_bfloat16>(int)",
    "core": "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64MultiCtasKvVarSeqQ8ForGen",
    "glu": "void tensorrt_llm::kernels::swiglu_kernel<__nv_bfloat16>(int)",
    "allreduce": "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8>(int)",
    "fusedreduce": "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport"
    "<(AllReduceFusionPattern)1, __nv_bfloat16, 8>(int)",
    "route": "void moe::dev::routing::routingIndicesDynBlockKernel<moe::KernelParams<float> >(int)",
    "experts": "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1",
    "moesum": "void moe::dev::finalize::finalizeKernel<moe::KernelParams<bfloat16_t> >(int)",
}  # fmt: skip


@dataclass(frozen=True)
class Spelled:
    """Kernel names in order, and the group that each must get."""

    names: tuple[str, ...]
    groups: tuple[str, ...]


def spell(line: str, words: Mapping[str, str]) -> Spelled:
    """Read a line of words."""
    names: list[str] = []
    groups: list[str] = []
    group = "other"
    for word in line.split():
        if word.endswith(":"):
            group = GROUPS[word[:-1]]
            continue
        stem, _, times = word.partition("*")
        names += [words[stem]] * int(times or 1)
        groups += [group] * int(times or 1)
    return Spelled(tuple(names), tuple(groups))


def passes(begin: str, layers: Sequence[str], end: str, count: int = 2) -> str:
    """Passes through a model as one line."""
    return " ".join([begin, *layers, end] * count)


def device_trace(sequence: Spelled, *, stream: int = 7) -> Trace:
    """The kernels one after another on one stream, as a recording of the device alone."""
    maker = TraceMaker()
    for place, name in enumerate(sequence.names):
        kind = "memcpy" if name.startswith("Memcpy") else "kernel"
        event = maker.device_row(name, 10 * place, 6, kind, stream=stream, correlation=place + 1)
        if kind == "memcpy":
            maker.side("copies", event, direction="device_to_device", bytes=64)
    return maker.build()


def groups_of(analysis: Analysis) -> list[str]:
    """The group of each work row, in order."""
    return [BUCKETS[bucket][0] for bucket in analysis.work["bucket"]]


def misplaced(line: str, words: Mapping[str, str]) -> list[str]:
    """What got another group than the line says, with its place; empty when all is right."""
    sequence = spell(line, words)
    found = groups_of(analyze(device_trace(sequence)))
    return [
        f"{place} {name[:50]}: {got}, not {wanted}"
        for place, (name, got, wanted) in enumerate(
            zip(sequence.names, found, sequence.groups, strict=True)
        )
        if got != wanted
    ]

"""What a GPU would launch for a model that runs here on the CPU.

The operators of a profile are translated to the kernels that PyTorch launches for them on CUDA, so
that the launch sequence of any architecture can be had without a device.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from tests.launch_sequences import EAGER
from tests.make_traces import TraceMaker
from tracer.collectors.kineto.trace import read_kineto
from tracer.events import Trace

_COMPARE = EAGER["mul"].replace("MulFunctor<float> >", "CompareFunctor<long>").replace("Binary", "")
_INTEGER = EAGER["epsilon"].replace("<float>", "<long>")
_CLAMP = EAGER["silu"].replace("silu_kernel", "launch_clamp_scalar")
_OTHER_REDUCTION = EAGER["sum"].replace("sum_functor", "MaxNanFunctor")
_SUBTRACT = EAGER["add"].replace("CUDAFunctor_add", "CUDAFunctorSub")
_EXPONENT = EAGER["root"].replace("rsqrt", "exp")
_DIVIDE = EAGER["mul"].replace("MulFunctor", "DivFunctor")
_POWER_OF = EAGER["square"].replace("pow_tensor_scalar_kernel_impl", "pow_scalar_tensor_impl")
_GEMV = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(int)"
_WHERE = EAGER["silu"].replace("silu_kernel", "where_kernel_impl")
_PREPARE = "void at::cuda::detail::prepare_grouped_gemm_data<cutlass::bfloat16_t>(int)"
_ARANGE = "void (anonymous namespace)::elementwise_kernel_with_index<int, arange>(int)"
_SCAN = "void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(int)"
_KERNELS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_addmm_activation"), (EAGER["gemm"],)),
    **dict.fromkeys(("mv", "addmv", "dot"), (_GEMV,)),
    **dict.fromkeys(("copy_",), (EAGER["cast"],)),
    **dict.fromkeys(("embedding", "index_select"), (EAGER["gather"],)),
    **dict.fromkeys(("index", "_index_put_impl_", "index_add_", "gather"), (EAGER["index"],)),
    **dict.fromkeys(("scatter_", "scatter", "scatter_add_"), (EAGER["index"],)),
    **dict.fromkeys(("max", "min", "any", "all", "amax", "histc"), (_OTHER_REDUCTION,)),
    "sum": (EAGER["sum"],),
    **dict.fromkeys(("exp", "exp2"), (_EXPONENT,)),
    **dict.fromkeys(("clamp", "clamp_min", "clamp_min_", "relu"), (_CLAMP,)),
    **dict.fromkeys(("silu", "sigmoid", "tanh", "gelu", "softplus"), (EAGER["silu"],)),
    **dict.fromkeys(("where", "masked_fill_", "tril", "triu"), (_WHERE,)),
    **dict.fromkeys(
        ("eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_not"), (_COMPARE,)
    ),
    **dict.fromkeys(("sub", "sub_", "abs"), (_SUBTRACT,)),
    **dict.fromkeys(("div", "div_", "floor_divide"), (_DIVIDE,)),
    **dict.fromkeys(("maximum", "minimum"), (_EXPONENT.replace("exp", "maximum"),)),
    **dict.fromkeys(("fill_", "zero_"), (EAGER["epsilon"].replace("OnSelf_add", "Fill"),)),
    "_grouped_mm": (_PREPARE, EAGER["grouped"]),
    "topk": (EAGER["topk"], EAGER["sort"]),
    "sort": (EAGER["sort"],),
    "arange": (_ARANGE,),
    "cumsum": (_SCAN,),
    "pow": (EAGER["square"],),
    "mean": (EAGER["mean"],),
    "rsqrt": (EAGER["root"],),
    "cos": (EAGER["cos"],),
    "sin": (EAGER["sin"],),
    "neg": (EAGER["neg"],),
    "cat": (EAGER["cat"],),
    "argmax": (EAGER["argmax"],),
    "_softmax": (EAGER["softmax"],),
    "native_layer_norm": (EAGER["layernorm"],),
    "_fused_rms_norm": (EAGER["layernorm"],),
    "convolution": (EAGER["conv"],),
    "_scaled_dot_product_flash_attention_for_cpu": (EAGER["core"],),
    "_scaled_dot_product_attention_math": (EAGER["core"],),
}
_FLOATS = ("float", "double", "c10::BFloat16", "c10::Half")
_LONG_US, _SHORT_US = 20.0, 2.0


def emulate(model: nn.Module, run: Callable[[], Any], folder: Path) -> Trace:
    """The trace of `run` with module ranges, as if it had run on a GPU."""
    path = folder / "profile.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _Ranges(model), torch.no_grad():
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
                run()
            prof.export_chrome_trace(str(path))
    return _translate(read_kineto(path))


class _Ranges:
    """Ranges around every module of a model, as the recorder writes them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooks: list[Any] = []

    def __enter__(self) -> None:
        open_ranges: list[Any] = []
        for name, module in self._model.named_modules():
            title = f"module::{name}::{type(module).__name__}"

            def begin(_module: nn.Module, _inputs: Any, title: str = title) -> None:
                open_ranges.append(record_function(title))
                open_ranges[-1].__enter__()

            def end(_module: nn.Module, _inputs: Any, _outputs: Any) -> None:
                open_ranges.pop().__exit__(None, None, None)

            self._hooks.append(module.register_forward_pre_hook(begin))
            self._hooks.append(module.register_forward_hook(end))

    def __exit__(self, *exception: object) -> None:
        for hook in self._hooks:
            hook.remove()


def _translate(profile_trace: Trace) -> Trace:
    events = profile_trace.events
    shapes = profile_trace.table("shapes").set_index("event")
    kinds = events["kind"].astype(str).tolist()
    names = events["name"].astype(str).tolist()
    starts = ((events["start_ns"] - events["start_ns"].min()) / 1000).tolist()
    lengths = (events["duration_ns"] / 1000).tolist()
    maker, inside, clock = TraceMaker(), -1.0, 0.0
    for row, (kind, name, start, length) in enumerate(
        zip(kinds, names, starts, lengths, strict=True)
    ):
        if kind == "module":
            maker.host("module", name, start, length)
        elif kind == "operator" and start >= inside:
            kernels = _kernels(name.removeprefix("aten::"), shapes, row)
            if kernels:
                inside = start + length
                clock = _launch(maker, name, kernels, start, length, max(clock, start))
    return maker.build()


def _kernels(operator: str, shapes: Any, row: int) -> tuple[str, ...]:
    if operator == "pow" and json.loads(shapes.input_types[row])[0] == "Scalar":
        return (_POWER_OF,)
    if operator in ("add", "add_", "mul", "mul_"):
        types = json.loads(shapes.input_types[row])[:2]
        dims = json.loads(shapes.input_shapes[row])[:2]
        number = "Scalar" in types or dims[1] == []
        return (_arithmetic(operator.rstrip("_"), set(types) & set(_FLOATS) != set(), number),)
    return _KERNELS.get(operator, ())


def _arithmetic(operator: str, floating: bool, number: bool) -> str:
    if not floating:
        return _INTEGER
    return EAGER["mul"] if operator == "mul" else EAGER["epsilon" if number else "add"]


def _launch(
    maker: TraceMaker,
    operator: str,
    kernels: tuple[str, ...],
    start: float,
    length: float,
    clock: float,
) -> float:
    """An operator with its launches on the host; the kernels follow on the device."""
    maker.host("operator", operator, start, length)
    for place, kernel in enumerate(kernels):
        correlation = maker.next_correlation
        maker.next_correlation += 1
        call = start + length * (place + 1) / (len(kernels) + 2)
        maker.host("runtime", "cudaLaunchKernel", call, 0, correlation=correlation)
        heavy = kernel in (EAGER["gemm"], EAGER["core"], EAGER["grouped"])
        took = _LONG_US if heavy else _SHORT_US
        clock = max(clock, call) + 1
        maker.add("kernel", kernel, clock, took, device=0, stream=7, correlation=correlation)
        clock += took
    return clock

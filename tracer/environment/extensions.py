"""The compiled extensions that transformers programs meet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Extension:
    """A package, the names it is installed under, and its compiled parts."""

    name: str
    module: str
    distributions: tuple[str, ...]
    compiled: tuple[str, ...] = ()
    needs_torch: bool = True


EXTENSIONS: tuple[Extension, ...] = (
    Extension("flash-attn", "flash_attn", ("flash-attn",), ("flash_attn_2_cuda",)),
    Extension("flash-attn 3", "flash_attn_interface", ("flash-attn-3",), ("flash_attn_3._C",)),
    Extension("bitsandbytes", "bitsandbytes", ("bitsandbytes",)),
    Extension("xformers", "xformers", ("xformers",), ("xformers.ops",)),
    Extension("vllm", "vllm", ("vllm",), ("vllm._C", "vllm._moe_C")),
    Extension("sglang kernels", "sgl_kernel", ("sglang-kernel", "sgl-kernel")),
    Extension("flashinfer", "flashinfer", ("flashinfer-python", "flashinfer")),
    Extension(
        "triton", "triton", ("triton", "pytorch-triton-rocm"), ("triton._C.libtriton",), False
    ),
    Extension("torchao", "torchao", ("torchao",), ("torchao._C",)),
    Extension(
        "transformer-engine",
        "transformer_engine",
        ("transformer-engine", "transformer-engine-torch"),
        ("transformer_engine_torch", "transformer_engine.pytorch"),
    ),
    Extension("deep_ep", "deep_ep", ("deep-ep",), ("deep_ep_cpp",)),
    Extension("causal-conv1d", "causal_conv1d", ("causal-conv1d",), ("causal_conv1d_cuda",)),
    Extension("mamba-ssm", "mamba_ssm", ("mamba-ssm",), ("selective_scan_cuda",)),
    Extension("apex", "apex", ("apex",), ("amp_C",)),
    Extension("torchvision", "torchvision", ("torchvision",), ("torchvision._C",)),
    Extension("torchaudio", "torchaudio", ("torchaudio",)),
)


def extension_named(name: str) -> Extension:
    return next(extension for extension in EXTENSIONS if extension.name == name)

"""What a live run was: versions, devices, and what its models resolved to."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tracer.collectors.modules.module_tree import modules_of, unwrap
from tracer.collectors.modules.weights import dtype_name, logical_numel, parameters_in
from tracer.collectors.untyped_torch import (
    cuda_is_initialized,
    cudnn_is_available,
    cudnn_version,
    nccl_version,
)

# The engine that ran the model, the most telling first: module loaded -> name.
_ENGINES = ("vllm", "sglang", "tensorrt_llm", "deepspeed", "transformers")
_PACKAGES = ("transformers", "peft", "accelerate", "triton", "bitsandbytes", "flash_attn", "vllm")
# Numbers of a configuration that say how much work a token is.
_CONFIG_FIELDS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "sliding_window",
    "tie_word_embeddings",
)


def describe_model(model: nn.Module) -> dict[str, Any]:
    """What one model resolved to. The program may free it before the recording ends."""
    modules = modules_of(model)  # searched once: the model's first call waits for it
    parameters = parameters_in(modules)
    configured = _configured(modules)
    return {
        "attention_implementation": attention_implementation([configured]),
        "attention_requested": attention_requested([configured]),
        "dtypes": dtypes(parameters),
        "quantization": quantization(configured, parameters),
        "narrow_weights": narrow_weights((*parameters, *_buffers_in(modules))),
        "compile_mode": compile_mode(modules),
        "model": model_facts(model, parameters, _config(configured)),
    }


def _configured(modules: Sequence[nn.Module]) -> nn.Module:
    """The model, or the first inside it that chose an attention: what is put around a model, as
    for LoRA, has a configuration of its own or none."""
    chose = (m for m in modules if said(vars(m).get("config"), "_attn_implementation") is not None)
    return next(chose, modules[0])


def collect_facts(described: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of a run with these models; one that is not known is None or absent. Empty is what
    is known of a model that could not be described."""
    described = [model for model in described if model]

    def first(name: str) -> Any:
        return next((model[name] for model in described if model[name] is not None), None)

    return {
        "attention_implementation": first("attention_implementation"),
        "attention_requested": first("attention_requested"),
        "attention_backends": attention_backends(),
        "fp32_products": fp32_products(),
        "dtypes": _summed(model["dtypes"] for model in described),
        "quantization": first("quantization"),
        "narrow_weights": any(model["narrow_weights"] for model in described)
        if described
        else None,
        "compile_mode": first("compile_mode"),
        "engine": next((name for name in _ENGINES if name in sys.modules), None),
        "versions": versions(),
        "gpus": gpu_names(),
        "device_uuids": device_uuids(),
        "models": [model["model"] for model in described],
    }


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total.most_common())


def said(config: Any, name: str) -> Any:
    """What a configuration says under a name; None where it says nothing. It is the program's code
    that answers: where each layer has a value of its own, transformers raises."""
    try:
        return getattr(config, name, None)
    except Exception:  # the border to the traced program
        return None


def _config(model: nn.Module) -> Any:
    return vars(unwrap(model)).get("config")


def attention_implementation(models: Iterable[nn.Module]) -> str | None:
    """What the first model with a choice resolved to, however it was asked for."""
    for model in models:
        resolved = said(_config(model), "_attn_implementation")
        if isinstance(resolved, str):
            return resolved
    return None


def attention_requested(models: Iterable[nn.Module]) -> str | None:
    """What was asked for, as far as the result tells: transformers keeps no record of it, but it
    refuses by an error what it cannot do, and without a wish takes sdpa wherever a model can."""
    for model in models:
        resolved = said(_config(model), "_attn_implementation")
        if isinstance(resolved, str):
            if resolved not in ("sdpa", "eager"):
                return resolved
            able = bool(getattr(unwrap(model), "_supports_sdpa", False))
            if resolved == "eager":
                return "eager" if able else "eager or nothing (the model offers no sdpa)"
            return "sdpa or nothing"
    return None


# Packages with attention of their own: module -> name.
_ATTENTION_PACKAGES = {
    "flash_attn": "flash-attn",
    "flash_attn_interface": "flash-attn 3",
    "flash_attn_3": "flash-attn 3",
    "xformers": "xformers",
    "flashinfer": "flashinfer",
    "sageattention": "sageattention",
    "kernels": "kernels (hub)",
}


def attention_backends() -> list[str]:
    """What attention this machine offers: of torch, as allowed now, and of installed packages."""
    cuda: Any = torch.backends.cuda
    found: list[str] = []
    if not torch.cuda.is_available():
        found += ["flash (CPU)"] if cuda.flash_sdp_enabled() else []
    else:
        found += (
            ["flash"] if cuda.is_flash_attention_available() and cuda.flash_sdp_enabled() else []
        )
        found += ["cuDNN"] if _allowed("cudnn_sdp_enabled") and _has_cudnn() else []
        found += ["memory-efficient"] if _allowed("mem_efficient_sdp_enabled") else []
    found += ["math"] if cuda.math_sdp_enabled() else []
    packages = (name for module, name in _ATTENTION_PACKAGES.items() if _is_installed(module))
    return list(dict.fromkeys([*found, *packages]))


def _allowed(switch: str) -> bool:
    ask = getattr(torch.backends.cuda, switch, None)
    return ask is not None and bool(ask())


def _has_cudnn() -> bool:
    return not torch.version.hip and cudnn_is_available()


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a broken or half-imported package
        return False


def fp32_products() -> str | None:
    """How products of fp32 are multiplied on a GPU: "tf32" or "ieee"; None without one."""
    if not torch.cuda.is_available() or torch.version.hip:
        return None
    matmul: Any = torch.backends.cuda.matmul
    own = getattr(matmul, "fp32_precision", None)
    if own is None:  # torch before 2.9; later the old switch warns when both ways are mixed
        return "tf32" if matmul.allow_tf32 else "ieee"
    precision = getattr(torch.backends, "fp32_precision", None) if own == "none" else own
    return "tf32" if precision == "tf32" else "ieee"


def dtypes(parameters: Iterable[torch.Tensor]) -> dict[str, int]:
    """Weights of each type, the commonest first."""
    counts: dict[str, int] = {}
    for parameter in parameters:
        name = dtype_name(parameter)
        counts[name] = counts.get(name, 0) + logical_numel(parameter)
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def quantization(model: nn.Module, parameters: Iterable[torch.Tensor]) -> str | None:
    """How weights are quantized: the configuration's word, else the class of a packed weight."""
    stated: Any = said(_config(model), "quantization_config")
    if isinstance(stated, Mapping):
        method = stated.get("quant_method")
    else:
        method = getattr(stated, "quant_method", None)
    if method is not None:
        return str(getattr(method, "value", method))
    classes = (type(parameter).__name__ for parameter in parameters)
    return next((name for name in classes if name not in _PLAIN_PARAMETERS), None)


def narrow_weights(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether one of these holds numbers of 8 bits or fewer, or is packed in a way of its own: what
    may be widened before a product."""
    return any(_is_narrow(tensor) for tensor in tensors)


def _buffers_in(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    own = (buffer for module in modules for buffer in module._buffers.values())
    return [buffer for buffer in own if buffer is not None]


def _is_narrow(tensor: torch.Tensor) -> bool:
    if type(tensor).__name__ not in _PLAIN_PARAMETERS:
        return True
    return tensor.dtype.itemsize == 1 and tensor.dtype is not torch.bool


_PLAIN_PARAMETERS = frozenset({"Parameter", "Tensor", "DTensor", "UninitializedParameter"})


# Where `torch.compile` leaves a compiled call in a module's own attributes.
_COMPILED = ("_compiled_call_impl", "_compiled_call", "forward")


def compile_mode(modules: Iterable[nn.Module]) -> str | None:
    """The mode of `torch.compile`, of a compiled model or of the first compiled part of one."""
    for module in modules:
        ask = _config_asker(vars(module))
        if ask is not None:
            return _mode_of(ask)
    return None


def _config_asker(own: Mapping[str, Any]) -> Callable[[], Any] | None:
    """What tells how a module with these attributes was compiled; None where it was not."""
    asks = [own.get("get_compiler_config")]
    asks += [getattr(own[name], "get_compiler_config", None) for name in _COMPILED if name in own]
    return next((ask for ask in asks if callable(ask)), None)


def _mode_of(ask: Callable[[], Any]) -> str:
    config = ask()
    if not isinstance(config, Mapping):
        return "default"
    tunes, graphs = bool(config.get("max_autotune")), bool(config.get("triton.cudagraphs"))
    if tunes:
        return "max-autotune" if graphs else "max-autotune-no-cudagraphs"
    return "reduce-overhead" if graphs else "default"


def versions() -> dict[str, str]:
    """Versions of what the run used; only what is loaded."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.version.hip:
        found["hip"] = torch.version.hip
    if cuda_is_initialized():
        found.update(_device_versions())
    return found


def _device_versions() -> dict[str, str]:
    found: dict[str, str] = {}
    cudnn = cudnn_version()
    if cudnn:
        found["cudnn"] = str(cudnn)
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, nccl_version()))
    driver = _driver_version()
    if driver:
        found["driver"] = driver
    return found


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the driver's library: without it the version is not known
        return ""
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()


def gpu_names() -> list[str]:
    """The devices that the framework sees, when it uses any."""
    if not cuda_is_initialized():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def device_uuids() -> dict[str, str]:
    """The UUID of each device by its number, where the framework tells it."""
    if not cuda_is_initialized():
        return {}
    properties: list[Any] = list(map(torch.cuda.get_device_properties, range(len(gpu_names()))))
    uuids = {str(i): getattr(found, "uuid", None) for i, found in enumerate(properties)}
    return {device: f"GPU-{uuid}" for device, uuid in uuids.items() if uuid is not None}


def model_facts(
    model: nn.Module, parameters: Sequence[torch.Tensor], config: Any
) -> dict[str, Any]:
    """Size and shape of one model."""
    inner = unwrap(model)
    shape = {name: _plain(said(config, name)) for name in _CONFIG_FIELDS}
    return {
        "type": type(inner).__name__,
        "parameters": sum(map(logical_numel, parameters)),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "training": inner.training,
        **{name: value for name, value in shape.items() if value is not None},
    }


def _plain(value: Any) -> int | str | bool | None:
    return value if isinstance(value, (int, str, bool)) else None


# Counters of the caching allocator that say something when they grow inside the trace.
_COUNTERS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")
_SIZES = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
}


def allocator_counters() -> dict[int, dict[str, int]]:
    """Counters of the caching allocator of each device; none before a device is used."""
    if not cuda_is_initialized():
        return {}
    return {
        device: {name: int(stats.get(name, 0)) for name in (*_COUNTERS, *_SIZES.values())}
        for device in range(torch.cuda.device_count())
        if (stats := torch.cuda.memory_stats(device)).get("allocated_bytes.all.peak")
    }


def allocator_facts(
    before: Mapping[int, Mapping[str, int]], after: Mapping[int, Mapping[str, int]]
) -> list[dict[str, int]]:
    """What the allocator did inside the trace, for each device. Peaks are those of the process."""
    return [
        {
            "device": device,
            **{name: counts[name] - before.get(device, {}).get(name, 0) for name in _COUNTERS},
            **{name: counts[key] for name, key in _SIZES.items()},
        }
        for device, counts in after.items()
    ]

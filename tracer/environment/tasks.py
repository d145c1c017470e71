"""What the children of `probe_torch` do; each answers through `child.reply`."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer.environment.child import reply
from tracer.environment.extensions import Extension, extension_named

# Libraries of which a process must have one.
CUDA_LIBRARIES = re.compile(
    r"lib(cudart|cublas|cublasLt|cudnn|nccl|nvrtc|cupti|cusparse|cufft|cusolver|nvJitLink|"
    r"amdhip64|rccl|hipblas|rocblas|MIOpen)[.\-_\d]*\.so"
)


def _guarded(function: Callable[[], Any]) -> Any:
    """A value, or None where this build does not have it."""
    try:
        return function()
    except Exception:  # the border to builds of torch that differ: absent is an answer
        return None


def tell_torch(torch: Any) -> None:
    """The facts of the wheel; none of them touches a device."""
    questions: dict[str, Callable[[], Any]] = {
        "version": lambda: str(torch.__version__),
        "file": lambda: str(torch.__file__),
        "cuda": lambda: torch.version.cuda,
        "hip": lambda: torch.version.hip,
        "cxx11_abi": lambda: bool(torch.compiled_with_cxx11_abi()),
        "architectures": lambda: _architectures(torch),
        "cudnn": lambda: torch.backends.cudnn.version(),
        "nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())),
        "numpy": lambda: bool(torch.ones(2).numpy().sum() == 2),
        "threads": lambda: int(torch.get_num_threads()),
        "cpu_capability": lambda: str(torch.backends.cpu.get_cpu_capability()),
    }
    # A name apart from `torch_error`: this torch imported.
    reply(torch={name: _guarded(function) for name, function in questions.items()})
    reply(cudnn_error=_cudnn_error(torch))
    reply(libraries=loaded_libraries())


def _architectures(torch: Any) -> list[str]:
    """`get_arch_list` is empty without a device; the flags under it are not."""
    flags = _guarded(lambda: torch._C._cuda_getArchFlags())
    return str(flags).split() if flags else list(torch.cuda.get_arch_list())


def _cudnn_error(torch: Any) -> str | None:
    """cuDNN says itself when the one it found is older than the one torch was built with."""
    try:
        torch.backends.cudnn.version()
    except RuntimeError as error:
        return str(error)
    except AttributeError:
        return None
    return None


def loaded_libraries() -> list[str]:
    """Paths of the CUDA and ROCm libraries in this process."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/")}
    return sorted(path for path in paths if CUDA_LIBRARIES.search(Path(path).name))


def device_task(_: str) -> Callable[[Any], None]:
    """Devices as torch sees them, a kernel on each, precisions, attention backends."""
    return _devices


def _devices(torch: Any) -> None:
    if not torch.cuda.is_available():
        reply(cuda_available=False, cuda_error=_why_unavailable(torch))
        return
    count = torch.cuda.device_count()
    reply(cuda_available=True, cuda_count=count)
    for index in range(count):
        _tell_device(torch, index)
    for index in range(count):
        reply(running="kernel", cuda_device=index)
        total = torch.ones(1024, device=f"cuda:{index}").sum().item()
        reply(ran="kernel", cuda_device=index, ok=total == 1024)
    reply(libraries=loaded_libraries())
    _precisions(torch)
    _attention(torch, "cuda")


def _why_unavailable(torch: Any) -> str | None:
    """The reason in torch's own words; asking for a device is what makes it speak."""
    try:
        torch.cuda.init()
    except Exception as error:  # the border to the driver: its words are the answer
        return str(error).splitlines()[0][:300]
    return None


def _tell_device(torch: Any, index: int) -> None:
    properties = torch.cuda.get_device_properties(index)
    reply(
        cuda_device=index,
        name=_guarded(lambda: str(properties.name)),
        capability=_guarded(lambda: [properties.major, properties.minor]),
        memory_bytes=_guarded(lambda: int(properties.total_memory)),
        uuid=_guarded(lambda: str(properties.uuid)),
        gcn=_guarded(lambda: str(properties.gcnArchName).split(":")[0]),
    )


def _precisions(torch: Any) -> None:
    for name, multiply in (("bf16", _multiply_bf16), ("fp8", _multiply_fp8)):
        reply(running=name)
        try:
            multiply(torch)
        except Exception as error:  # the border to the device: a refusal is the answer
            reply(ran=name, ok=False, error=str(error).splitlines()[0][:300])
        else:
            reply(ran=name, ok=True)


def _multiply_bf16(torch: Any) -> None:
    left = torch.ones(64, 64, dtype=torch.bfloat16, device="cuda")
    if (left @ left)[0, 0].item() != 64:
        raise RuntimeError("wrong result")


def _multiply_fp8(torch: Any) -> None:
    left = torch.ones(64, 64, device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    product = torch._scaled_mm(left, left.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    if product[0, 0].item() != 64:
        raise RuntimeError("wrong result")


def attention_task(device: str) -> Callable[[Any], None]:
    return lambda torch: _attention(torch, device)


def _attention(torch: Any, device: str) -> None:
    """Run each attention backend once, and compare it with the plain one."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query = torch.randn(1, 4, 128, 64, device=device, dtype=torch.bfloat16)
    attend = torch.nn.functional.scaled_dot_product_attention
    with sdpa_kernel(SDPBackend.MATH):
        expected = attend(query, query, query).float()
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
        backend = getattr(SDPBackend, name, None)
        if backend is None:
            continue
        reply(running=f"attention {name}", on=device)
        try:
            with sdpa_kernel(backend):
                difference = (attend(query, query, query).float() - expected).abs().max().item()
        except Exception as error:  # the border to the device: a refusal is the answer
            reply(attention=name, on=device, ok=False, error=str(error).splitlines()[0][:300])
        else:
            reply(attention=name, on=device, ok=difference < 0.05, difference=difference)


def profiler_task(_: str) -> Callable[[Any], None]:
    return _profiler


def _profiler(torch: Any) -> None:
    """Whether a recording holds device rows; CUPTI may be taken or forbidden. The inner profiler:
    `torch.profiler` imports 800 modules before its first event."""
    from torch.autograd.profiler import profile

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    profiler = profile(use_device="cuda" if cuda else None, use_kineto=True)
    with profiler:
        work = torch.ones(64, 64, device=device)
        (work @ work).sum().item()
    results = profiler.kineto_results
    events = results.events() if results is not None else []
    rows = sum(1 for event in events if "CPU" not in str(event.device_type()))
    reply(profiler_host_rows=len(events) - rows, profiler_device_rows=rows, profiler_cuda=cuda)


_INTERFACE_ROOMS = ("torch_private", "compiling.compiler_interfaces")


def interfaces_task(_: str) -> Callable[[Any], None]:
    return _interfaces


def _interfaces(torch: Any) -> None:
    """Ask the live capture which private interfaces of torch it found; it may not be there."""
    del torch
    try:
        rooms = [importlib.import_module(f"tracer.collectors.{name}") for name in _INTERFACE_ROOMS]
        listed = [interface for room in rooms for interface in room.private_interfaces()]
    except (ImportError, AttributeError) as error:
        reply(interfaces=None, reason=str(error))
        return
    reply(interfaces=[[str(name), bool(found), str(fallback)] for name, found, fallback in listed])


def extension_task(name: str) -> Callable[[Any], None]:
    extension = extension_named(name)
    return lambda torch: _extension(extension, torch)


def _extension(extension: Extension, torch: Any) -> None:
    """Import the package, then its compiled parts, some of which it would hide if they fail."""
    importing = extension.module
    reply(extension=extension.name, importing=importing)
    module = importlib.import_module(extension.module)
    reply(extension=extension.name, version=getattr(module, "__version__", None))
    for part in extension.compiled:
        if _spec(part) is None:
            continue
        reply(extension=extension.name, importing=part)
        importlib.import_module(part)
    quiet = _QUIET_FAILURES.get(extension.name)
    hidden = quiet(torch) if quiet is not None else None
    reply(extension=extension.name, imported=True, hidden_failure=hidden)


def _spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _bitsandbytes(_: Any) -> str | None:
    library = getattr(sys.modules.get("bitsandbytes.cextension"), "lib", None)
    if library is None or "Error" in type(library).__name__ or "Mock" in type(library).__name__:
        return "its native library did not load"
    return None


def _xformers(_: Any) -> str | None:
    library = sys.modules.get("xformers._cpp_lib")
    failure = getattr(library, "_cpp_library_load_exception", None)
    return str(failure).splitlines()[0] if failure else None


def _torchvision(torch: Any) -> str | None:
    """Its import succeeds with a warning; its operators are what is missing then."""
    try:
        _ = torch.ops.torchvision.nms
    except (AttributeError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return None


# Packages that import although their compiled part failed.
_QUIET_FAILURES: dict[str, Callable[[Any], str | None]] = {
    "bitsandbytes": _bitsandbytes,
    "xformers": _xformers,
    "torchvision": _torchvision,
}

TASKS: dict[str, Callable[[str], Callable[[Any], None]]] = {
    "device": device_task,
    "attention": attention_task,
    "profiler": profiler_task,
    "interfaces": interfaces_task,
    "extension": extension_task,
}

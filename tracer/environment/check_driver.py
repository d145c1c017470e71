"""The NVIDIA driver: is it there, does it answer, is it new enough for the wheel."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.environment.facts import Facts, Nvml
from tracer.environment.rows import Row, error, not_checked, ok, warning

# The first driver of each CUDA major version on Linux; within a major version older ones work too.
FIRST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
_WHEELS = "https://download.pytorch.org/whl"
_CUDA_12_WHEEL = f"{_WHEELS}/cu126"

# What NVML's initialization says, and what to do.
_INIT_ERRORS = {
    "DriverNotLoaded": (
        "the NVIDIA kernel module is not loaded",
        "load it (sudo modprobe nvidia), or install a driver that matches the kernel",
    ),
    "LibRmVersionMismatch": (
        "the driver's library and kernel module differ: it was updated without a reboot",
        "reboot, or reload the nvidia kernel modules",
    ),
    "NoPermission": (
        "NVML may not open the device",
        "give this user /dev/nvidia*, or start the container with --gpus all",
    ),
    "Unknown": (
        "NVML failed for a reason it does not name",
        "look into dmesg for lines with NVRM or Xid, then reboot",
    ),
}
# Results of cuInit that NVML does not see.
_CU_INIT = {
    802: (
        "CUDA waits for the fabric of the NVSwitch (error 802)",
        "start it: sudo systemctl start nvidia-fabricmanager",
    ),
    803: (
        "the CUDA library does not match the kernel module (error 803)",
        "reboot after an update; in a container, take cuda-compat out of LD_LIBRARY_PATH",
    ),
    804: (
        "forward compatibility was asked for on a GPU that has none (error 804)",
        "remove the cuda-compat library from LD_LIBRARY_PATH, or update the driver",
    ),
    999: ("CUDA failed for a reason it does not name (error 999)", "look into dmesg, then reboot"),
    304: (
        "CUDA may not open the device (error 304)",
        "give this user /dev/nvidia*, and check `nvidia-modprobe -u`",
    ),
    100: (
        "CUDA finds no device (error 100)",
        "check CUDA_VISIBLE_DEVICES and the container's GPUs",
    ),
    101: ("CUDA refuses the device (error 101)", "look into dmesg, then reboot"),
}


def check_driver(facts: Facts) -> Iterable[Row]:
    """Driver present, answering, and new enough."""
    present = _presence(facts)
    if present is not None:
        yield present
        return
    if facts.nvml.error is not None:
        yield _init_row(facts.nvml.error)
    if facts.nvml.died_asking is not None:
        yield _death_row(facts.nvml)
    yield from _version_rows(facts)
    yield from _cu_init_rows(facts)


def driver_version(facts: Facts) -> str | None:
    """From NVML, or from the kernel module where the library is not at hand."""
    told = facts.nvml.get("driver_version").value
    if isinstance(told, str) and told:
        return told
    text = facts.machine.text("/proc/driver/nvidia/version") or ""
    words = [word for word in text.split() if word.count(".") >= 1 and word[0].isdigit()]
    return words[0] if words else None


def _presence(facts: Facts) -> Row | None:
    """The row for a missing driver; None if there is one to look at."""
    if facts.nvml.error not in ("LibraryNotFound", "NoBinding"):
        return None
    version = driver_version(facts)
    if version is not None and facts.nvml.error == "LibraryNotFound":
        return warning(
            "driver.library_missing",
            "driver",
            f"driver {version} is loaded, but libnvidia-ml.so.1 is not visible",
            "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    if facts.nvml.error == "NoBinding":
        return not_checked(
            "driver.not_asked",
            "driver",
            "nvidia-ml-py is not installed",
            "pip install nvidia-ml-py",
        )
    return _no_driver(facts)


def _no_driver(facts: Facts) -> Row:
    needs = facts.torch.cuda
    if not facts.has_nvidia and needs is None:
        return ok("driver.none", "driver", "no NVIDIA GPU and no NVIDIA driver: CPU only")
    wanted = FIRST_DRIVER.get(_major(needs) or 0)
    install = f"install the NVIDIA driver{f' (>= {wanted})' if wanted else ''}"
    if facts.machine.in_container:
        install = "start the container with --gpus all (NVIDIA container toolkit)"
    elif facts.machine.in_wsl:
        install = "install the NVIDIA driver for Windows; WSL takes it from there"
    if needs is None:
        return error("driver.missing", "driver", "an NVIDIA GPU without a driver", install)
    found = (
        f"no NVIDIA driver (libnvidia-ml.so.1 not found), and this torch is built for CUDA {needs}"
    )
    return error(
        "driver.missing",
        "driver",
        found,
        f"{install}; without a GPU, take the wheel from {_WHEELS}/cpu",
    )


def _init_row(reason: str) -> Row:
    found, remedy = _INIT_ERRORS.get(
        reason,
        (f"NVML does not start: {reason}", "run nvidia-smi; if it fails too, reinstall the driver"),
    )
    return error("driver.init", "driver", found, remedy, nvml=reason)


def _death_row(nvml: Nvml) -> Row:
    return error(
        "driver.crash",
        "driver",
        f"the driver's library {nvml.ending} when asked for {nvml.died_asking}",
        "reinstall the NVIDIA driver; the other answers below are from before",
    )


def _major(version: str | None) -> int | None:
    head = (version or "").partition(".")[0]
    return int(head) if head.isdigit() else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _version_rows(facts: Facts) -> Iterable[Row]:
    version, cuda = driver_version(facts), facts.nvml.cuda_version
    needs = facts.torch.cuda
    if version is None and cuda is None:
        told = facts.nvml.get("driver_version").error or "not told"
        if facts.nvml.error is None:
            yield not_checked("driver.version", "driver", f"driver version n/a ({told})")
        return
    called = f"driver {version}" if version else "the driver"
    supports = f" (CUDA {cuda[0]}.{cuda[1]})" if cuda else ""
    major = _major(needs)
    if needs is None or major is None:
        yield ok("driver.version", "driver", f"{called}{supports}")
        return
    if _too_old(version, cuda, major):
        yield _too_old_row(facts, called + supports, needs, major)
    elif cuda is not None and cuda < tuple(_numbers(needs)[:2]):
        yield warning(
            "driver.minor",
            "driver",
            f"{called}{supports} is older than the wheel's CUDA {needs}: compiled kernels run, "
            "PTX does not",
            "update the NVIDIA driver if a kernel fails with `unsupported toolchain`",
        )
    else:
        yield ok("driver.version", "driver", f"{called}{supports}, the wheel has CUDA {needs}")


def _too_old(version: str | None, cuda: tuple[int, int] | None, major: int) -> bool:
    if cuda is not None:
        return cuda[0] < major
    first = FIRST_DRIVER.get(major)
    return version is not None and first is not None and _numbers(version) < _numbers(first)


def _too_old_row(facts: Facts, called: str, needs: str, major: int) -> Row:
    if facts.torch.cuda_available:
        return ok("driver.compat", "driver", f"{called} runs CUDA {needs} through cuda-compat")
    first = FIRST_DRIVER.get(major)
    update = f"update the NVIDIA driver to >= {first}" if first else "update the NVIDIA driver"
    older = f", or pip install torch --index-url {_CUDA_12_WHEEL}" if major > 12 else ""
    return error(
        "driver.too_old",
        "driver",
        f"{called} is older than the wheel's CUDA {needs} needs",
        update + older,
        needed_driver=first,
    )


def _cu_init_rows(facts: Facts) -> Iterable[Row]:
    status = facts.nvml.cu_init
    if facts.nvml.libcuda_error is not None:
        if facts.nvml.error is None and facts.torch.cuda is not None:
            yield error(
                "driver.libcuda",
                "libcuda",
                f"NVML answers, but libcuda.so.1 does not load: {facts.nvml.libcuda_error}",
                "install the driver's CUDA library; in a container set "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            )
        return
    if status in (None, 0):
        return
    if status == 100 and not (facts.machine.variable("CUDA_VISIBLE_DEVICES") or "x").strip():
        return  # hidden on purpose: the variables say so
    found, remedy = _CU_INIT.get(
        int(status or 0), (f"cuInit fails with error {status}", "run nvidia-smi, look into dmesg")
    )
    yield error("driver.cu_init", "CUDA", found, remedy, cu_init=status)

"""The GPUs one by one: what NVML tells of each, and which of them this process sees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracer.analyzers.names.throttles import SLOWDOWNS
from tracer.environment.facts import Facts, Field, NvmlDevice
from tracer.environment.rows import Row, error, not_checked, ok, warning

# What each field is called, and what takes its place.
_COUNTERS = {
    "memory": "memory",
    "utilization": "utilization",
    "power": "power",
    "power_limit": "power limit",
    "temperature": "temperature",
    "sm_clock": "SM clock",
    "memory_clock": "memory clock",
    "throttle_reasons": "throttle reasons",
    "ecc_uncorrected": "ECC errors",
    "mig_mode": "MIG mode",
    "persistence_mode": "persistence mode",
    "compute_mode": "compute mode",
    "pcie_link": "PCIe link",
    "processes": "processes",
    "name": "name",
    "uuid": "UUID",
    "pci_address": "PCI address",
    "capability": "compute capability",
}
# Fields that many good boards do not have: no row for their absence alone.
_OPTIONAL = frozenset({"mig_mode", "ecc_uncorrected", "power_limit", "persistence_mode"})
_GB = 1_000_000_000


@dataclass(frozen=True)
class _Reason:
    status: str
    meaning: str
    remedy: str


_REASONS = {
    "NotSupported": _Reason(
        "not_checked",
        "this board, MIG slice or virtual GPU does not report it",
        "nothing to do: reports show n/a",
    ),
    "NoPermission": _Reason(
        "warning",
        "no permission",
        "run as root, or start the container with --cap-add SYS_ADMIN",
    ),
    "FunctionNotFound": _Reason(
        "warning", "the driver is too old for it", "update the NVIDIA driver"
    ),
    "Function Not Found": _Reason(
        "warning", "the driver is too old for it", "update the NVIDIA driver"
    ),
    "GpuIsLost": _Reason(
        "error",
        "the GPU has fallen off the bus",
        "reboot; if it comes back, look into dmesg for Xid 79 and check power and cooling",
    ),
    "Unknown": _Reason("warning", "an error the driver does not name", "look into dmesg for Xid"),
    "Timeout": _Reason("warning", "the driver did not answer in time", "look into dmesg for Xid"),
    "InsufficientPower": _Reason(
        "error", "not enough power", "connect the board's power cables, then reboot"
    ),
}


def check_devices(facts: Facts) -> Iterable[Row]:
    """A row a GPU, and rows for what is wrong with it or could not be asked."""
    count = facts.nvml.get("count")
    if count.error is not None and facts.nvml.error is None:
        yield not_checked("nvml.count", "GPUs", f"number of GPUs n/a ({count.error})")
    if count.number() == 0:
        yield _none_found(facts)
    for device in facts.nvml.devices:
        yield from _device_rows(facts, device)
    yield from _visibility(facts)


def _none_found(facts: Facts) -> Row:
    if facts.machine.in_container:
        remedy = "start the container with --gpus all"
    else:
        remedy = "check that the GPU is seated and powered: lspci | grep -i nvidia"
    return error("nvml.no_gpu", "GPUs", "a driver, but no GPU", remedy)


def _device_rows(facts: Facts, device: NvmlDevice) -> Iterable[Row]:
    handle = device.get("handle")
    if handle.error is not None and handle.error != "not asked":
        reason = _reason(handle.error)
        yield _row(reason, "nvml.handle", device.title, f"n/a: {reason.meaning}")
        return
    yield ok("device", device.title, _description(facts, device))
    yield from _absent_rows(facts, device)
    yield from _health_rows(device)


def _description(facts: Facts, device: NvmlDevice) -> str:
    """Name, memory and capability, each n/a if it was refused."""
    memory, basis = _memory_bytes(facts, device)
    size = f"{memory / _GB:.1f} GB{basis}" if memory else "memory n/a"
    capability = _capability(device.get("capability"))
    name = device.get("name").value or "name n/a"
    return f"{name}, {size}, capability {capability or 'n/a'}"


def _memory_bytes(facts: Facts, device: NvmlDevice) -> tuple[int | None, str]:
    """From NVML, or where it does not tell (unified memory, MIG) from torch."""
    told = device.get("memory").value
    if isinstance(told, dict) and isinstance(told.get("total_bytes"), int):
        return int(told["total_bytes"]), ""
    for found in facts.torch.devices:
        same = _same_uuid(found.uuid, device.get("uuid").value)
        if (same or (same is None and found.index == device.index)) and found.memory_bytes:
            return found.memory_bytes, " (from torch)"
    return None, ""


def _same_uuid(one: object, other: object) -> bool | None:
    """None: one of them is not known."""
    if not isinstance(one, str) or not isinstance(other, str):
        return None
    return one.removeprefix("GPU-").lower() == other.removeprefix("GPU-").lower()


def _capability(field: Field) -> str | None:
    value = field.value
    if isinstance(value, list | tuple) and len(value) == 2:
        return f"{value[0]}.{value[1]}"
    return None


def _reason(name: str) -> _Reason:
    return _REASONS.get(name, _Reason("warning", name, "run nvidia-smi -q and look into dmesg"))


def _row(reason: _Reason, rule: str, subject: str, found: str) -> Row:
    if reason.status == "error":
        return error(rule, subject, found, reason.remedy)
    if reason.status == "warning":
        return warning(rule, subject, found, reason.remedy)
    return not_checked(rule, subject, found, reason.remedy)


def _absent_rows(facts: Facts, device: NvmlDevice) -> Iterable[Row]:
    """The fields a GPU did not give, together where the reason is the same."""
    refused: dict[str, list[str]] = {}
    for name, called in _COUNTERS.items():
        found = device.get(name)
        why = found.error if found.error != "not asked" else None
        if why is None and isinstance(found.value, str) and name not in _TEXT_FIELDS:
            why = f"the driver answers {found.value!r}"
        if why is not None and not (why == "NotSupported" and name in _OPTIONAL):
            refused.setdefault(why, []).append(called)
    for why, names in refused.items():
        reason = _reason(why)
        instead = _instead(facts, device, names)
        found_text = f"{', '.join(names)}: n/a ({reason.meaning}){instead}"
        yield _row(reason, "nvml.field", device.title, found_text)


_TEXT_FIELDS = frozenset({"name", "uuid", "pci_address"})


def _instead(facts: Facts, device: NvmlDevice, names: Sequence[str]) -> str:
    if "memory" not in names or not _memory_bytes(facts, device)[0]:
        return ""
    return "; memory is asked of torch instead"


def _health_rows(device: NvmlDevice) -> Iterable[Row]:
    ecc = device.get("ecc_uncorrected").number()
    if ecc:
        yield error(
            "device.ecc",
            device.title,
            f"{int(ecc)} uncorrected memory errors since the last reset",
            "reset the GPU (nvidia-smi --gpu-reset); if they return, replace it",
        )
    yield from _throttle_rows(device)
    yield from _mode_rows(device)
    yield from _memory_rows(device)
    yield from _link_rows(device)


def _throttle_rows(device: NvmlDevice) -> Iterable[Row]:
    mask = device.get("throttle_reasons").number()
    active = [name for bit, name in SLOWDOWNS.items() if mask and int(mask) & bit]
    if active:
        yield warning(
            "device.throttled",
            device.title,
            f"clocks are held down now: {', '.join(active)}",
            "check cooling and power: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
        )


def _mode_rows(device: NvmlDevice) -> Iterable[Row]:
    mode = device.get("compute_mode").number()
    if mode == 2:
        yield error(
            "device.compute_mode",
            device.title,
            "compute mode is prohibited: no process may use it",
            f"sudo nvidia-smi -i {device.index} -c DEFAULT",
        )
    elif mode == 3:
        yield warning(
            "device.compute_mode",
            device.title,
            "compute mode is exclusive: one process at a time",
            f"sudo nvidia-smi -i {device.index} -c DEFAULT if several ranks or workers share it",
        )
    if device.get("mig_mode").number() == 1:
        yield ok(
            "device.mig", device.title, "MIG is on: counters are per slice, utilization is n/a"
        )


def _memory_rows(device: NvmlDevice) -> Iterable[Row]:
    memory = device.get("memory").value
    if not isinstance(memory, dict):
        return
    used, total = memory.get("used_bytes"), memory.get("total_bytes")
    if not isinstance(used, int) or not isinstance(total, int) or not total:
        return
    if used / total > 0.1:
        count = device.get("processes").number()
        by = f" by {int(count)} processes" if count else ""
        yield warning(
            "device.memory_taken",
            device.title,
            f"{used / _GB:.1f} of {total / _GB:.1f} GB are taken{by}",
            "nvidia-smi shows by whom; the rest is what a model can have",
        )


def _link_rows(device: NvmlDevice) -> Iterable[Row]:
    link = device.get("pcie_link").value
    if not isinstance(link, dict):
        return
    width, widest = link.get("width"), link.get("max_width")
    if isinstance(width, int) and isinstance(widest, int) and 0 < width < widest:
        yield warning(
            "device.pcie",
            device.title,
            f"PCIe link runs with {width} of {widest} lanes",
            "reseat the board, or use a slot with all lanes: copies from the host are slower",
        )


def _visibility(facts: Facts) -> Iterable[Row]:
    """What CUDA_VISIBLE_DEVICES leaves, by identity and not by index."""
    value = facts.machine.variable("CUDA_VISIBLE_DEVICES")
    count = facts.nvml.get("count").number()
    if value is None or not count:
        return
    tokens = [token.strip() for token in value.split(",")]
    if tokens == [""] or tokens[0] in ("-1", "NoDevFiles"):
        yield warning(
            "devices.hidden",
            "CUDA_VISIBLE_DEVICES",
            f"{value!r} hides all {int(count)} GPUs",
            "unset it to use them",
        )
        return
    missing = next((token for token in tokens if _resolve(facts, token) is None), None)
    if missing is not None:
        yield warning(
            "devices.unknown",
            "CUDA_VISIBLE_DEVICES",
            f"{missing!r} names no GPU here: it and all that follow are hidden",
            "nvidia-smi -L lists what there is",
        )
        return
    names = [f"{position} = {_resolve(facts, token)}" for position, token in enumerate(tokens)]
    yield ok("devices.visible", "CUDA_VISIBLE_DEVICES", "; ".join(names))
    yield from _order_rows(facts, tokens)


def _resolve(facts: Facts, token: str) -> str | None:
    """The GPU a token names: by index, by the start of a UUID, or a MIG slice."""
    if token.startswith("MIG-"):
        return token
    if token.isdigit():
        found = [device for device in facts.nvml.devices if device.index == int(token)]
    else:
        uuids = {d.index: str(d.get("uuid").value or "") for d in facts.nvml.devices}
        found = [d for d in facts.nvml.devices if uuids[d.index].startswith(token)]
    if len(found) != 1:
        return None
    return f"{found[0].title} {found[0].get('uuid').value or '(UUID n/a)'}"


def _order_rows(facts: Facts, tokens: Sequence[str]) -> Iterable[Row]:
    """CUDA counts the fastest first unless told otherwise; NVML counts by bus."""
    names = {str(device.get("name").value) for device in facts.nvml.devices}
    by_bus = facts.machine.variable("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if len(names) > 1 and not by_bus and any(token.isdigit() for token in tokens):
        yield warning(
            "devices.order",
            "CUDA_DEVICE_ORDER",
            "GPUs of several kinds, and CUDA counts the fastest first: its 0 may not be "
            "nvidia-smi's 0",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID",
        )

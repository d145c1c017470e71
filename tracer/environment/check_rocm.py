"""AMD GPUs: driver, permission, and the architectures in the wheel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from tracer.environment.facts import Facts
from tracer.environment.machine import Machine
from tracer.environment.rows import Row, error, ok, warning

_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"


def check_rocm(facts: Facts) -> Iterable[Row]:
    """Nothing to say where there is neither an AMD GPU nor a ROCm wheel."""
    machine, torch = facts.machine, facts.torch
    present = bool(machine.pci_gpus("0x1002")) or machine.exists("/dev/kfd")
    if torch.hip is None:
        if present and torch.imported and torch.cuda is None and not facts.has_nvidia:
            yield error(
                "rocm.wheel",
                "ROCm",
                f"an AMD GPU, but torch {torch.version} is not built for ROCm",
                "pip install torch --index-url https://download.pytorch.org/whl/rocm6.4",
            )
        return
    yield from _driver_rows(machine)
    yield from _architecture_rows(facts)


def _driver_rows(machine: Machine) -> Iterable[Row]:
    if not machine.exists("/dev/kfd"):
        remedy = (
            "start the container with --device=/dev/kfd --device=/dev/dri --group-add video"
            if machine.in_container
            else "install the amdgpu driver (amdgpu-dkms), then reboot"
        )
        yield error("rocm.driver", "ROCm driver", "no /dev/kfd: no ROCm driver", remedy)
        return
    if not os.access(machine.at("/dev/kfd"), os.R_OK | os.W_OK):
        yield error(
            "rocm.permission",
            "ROCm driver",
            "/dev/kfd may not be opened by this user",
            "sudo usermod -aG render,video $USER, then log in again",
        )
        return
    version = machine.text("/sys/module/amdgpu/version") or "in the kernel"
    release = machine.text("/opt/rocm/.info/version")
    yield ok(
        "rocm.driver", "ROCm driver", f"amdgpu {version}" + (f", ROCm {release}" if release else "")
    )


def gfx_names(machine: Machine) -> list[str]:
    """`gfx942` for each GPU of the topology: the version is 9 04 02 in decimal pairs."""
    found: list[str] = []
    for node in machine.names(_TOPOLOGY):
        text = machine.text(f"{_TOPOLOGY}/{node}/properties") or ""
        match = re.search(r"^gfx_target_version (\d+)$", text, re.M)
        if match is not None and int(match[1]):
            value = int(match[1])
            found.append(f"gfx{value // 10000}{value // 100 % 100:x}{value % 100:x}")
    return found


def _architecture_rows(facts: Facts) -> Iterable[Row]:
    listed = [str(name).partition(":")[0] for name in facts.torch.wheel.get("architectures") or ()]
    override = facts.machine.variable("HSA_OVERRIDE_GFX_VERSION")
    for index, name in enumerate(gfx_names(facts.machine)):
        title = f"AMD GPU {index}"
        if not listed or name in listed:
            yield ok("rocm.architecture", title, name)
        elif override:
            yield warning(
                "rocm.override",
                title,
                f"{name} is not in the wheel; HSA_OVERRIDE_GFX_VERSION={override} passes it off as "
                "another",
                "results may be wrong: prefer a wheel built for this GPU",
            )
        else:
            yield error(
                "rocm.no_architecture",
                title,
                f"{name} is not among what the wheel was built for: {' '.join(listed)}",
                "take a wheel that lists it (see the ROCm compatibility matrix)",
            )

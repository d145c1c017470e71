"""The checks of `tracer doctor` on answers and files made by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.doctor_fakes import facts, rows_by_rule, with_environ, with_nvml, with_task
from tracer.commands.doctor_text import doctor_lines
from tracer.environment.check_compiler import check_compiler, probe_compilers
from tracer.environment.check_device_work import (
    check_attention,
    check_cuda,
    check_interfaces,
    check_precisions,
    check_profiler,
)
from tracer.environment.check_devices import check_devices
from tracer.environment.check_driver import check_driver
from tracer.environment.check_extensions import check_extensions
from tracer.environment.check_host import check_host
from tracer.environment.check_libraries import check_libraries
from tracer.environment.check_rocm import check_rocm, gfx_names
from tracer.environment.check_tools import check_tools
from tracer.environment.check_variables import check_variables
from tracer.environment.check_wheel import check_wheel, import_remedy, pinned, supports
from tracer.environment.diagnosis import Check, Diagnosis
from tracer.environment.facts import Facts
from tracer.environment.machine import Machine
from tracer.environment.rows import Row, ok, warning

UUIDS = [f"GPU-{n}1111111-2222-3333-4444-555555555555" for n in range(4)]
H200: dict[str, Any] = {
    "name": "NVIDIA H200",
    "uuid": UUIDS[0],
    "capability": [9, 0],
    "memory": {"total_bytes": 150_000_000_000, "used_bytes": 500_000_000},
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rows(check: Check, found: Facts) -> dict[str, Row]:
    return rows_by_rule(tuple(check(found)))


@pytest.mark.parametrize(
    ("capability", "listed", "kind"),
    [
        ((9, 0), "sm_80 sm_90", "binary"),
        ((8, 9), "sm_80 sm_90", "binary"),
        ((9, 0), "sm_90a", "binary"),
        ((9, 1), "sm_90a", "none"),
        ((10, 3), "sm_100f", "binary"),
        ((12, 0), "sm_80 sm_90 compute_90", "ptx"),
        ((12, 0), "sm_80 sm_90", "none"),
        ((7, 0), "sm_75 sm_80", "none"),
        ((7, 0), "compute_75", "none"),
    ],
)
def test_which_code_runs_on_which_gpu(capability: tuple[int, int], listed: str, kind: str) -> None:
    assert supports(capability, listed.split()) == kind


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("undefined symbol: _ZN2at", "built for another torch"),
        ("libcudart.so.11: cannot open shared object file", "needs the CUDA 11 libraries"),
        ("libcudnn.so.8: cannot open shared object file", "libcudnn.so.8 is missing"),
        ("libfoo.so: cannot open shared object file", "libfoo.so is missing"),
        ("/lib/libc.so.6: version `GLIBC_2.38' not found", "built on a newer system"),
        ("No module named 'einops.layers'", "pip install einops"),
        ("something else", "pip install --force-reinstall package"),
    ],
)
def test_remedies_of_import_errors(tmp_path: Path, message: str, remedy: str) -> None:
    assert remedy in import_remedy(message, "package", facts(tmp_path, cuda="13.0").torch)


def test_pins_of_a_wheel(tmp_path: Path) -> None:
    assert pinned("nvidia-cudnn-cu13==9.1.0.70; platform_system == 'Linux'") == (
        "nvidia-cudnn-cu13",
        "9.1.0.70",
    )
    assert pinned("numpy>=1.26") == (None, None)
    found = replace(
        facts(tmp_path, cuda="13.0", numpy=True),
        versions={"nvidia-cudnn-cu13": "9.0.0"},
        requirements={"torch": ("nvidia-cudnn-cu13==9.1.0",)},
    )
    row = rows(check_wheel, found)["wheel.libraries"]
    assert row.found == "nvidia-cudnn-cu13 9.0.0 (torch names 9.1.0)"


def test_a_cpu_wheel_beside_a_gpu(tmp_path: Path) -> None:
    row = rows(check_wheel, with_nvml(facts(tmp_path, numpy=True), H200))["wheel.cpu_only"]
    assert row.status == "error"
    assert row.remedy.endswith("whl/cu130")


@pytest.mark.parametrize("version", ["2.6.0", "2.16.0"])
def test_a_torch_outside_the_range(tmp_path: Path, version: str) -> None:
    assert rows(check_wheel, facts(tmp_path, version=version))["torch.version"].status == "warning"


def test_no_gpu_and_a_cpu_wheel_is_sound(tmp_path: Path) -> None:
    assert [row.rule for row in check_driver(facts(tmp_path, numpy=True))] == ["driver.none"]


def test_a_driver_without_its_library(tmp_path: Path) -> None:
    write(tmp_path, {"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64  580.65.06"})
    row = rows(check_driver, facts(tmp_path, cuda="13.0"))["driver.library_missing"]
    assert "driver 580.65.06 is loaded" in row.found
    assert "NVIDIA_DRIVER_CAPABILITIES" in row.remedy


def test_no_driver_in_a_container(tmp_path: Path) -> None:
    write(tmp_path, {"/.dockerenv": ""})
    assert "--gpus all" in rows(check_driver, facts(tmp_path, cuda="12.8"))["driver.missing"].remedy


@pytest.mark.parametrize(
    ("cuda", "driver", "wheel", "rule"),
    [
        (12020, "535.104.05", "13.0", "driver.too_old"),
        (12020, "535.104.05", "12.8", "driver.minor"),
        (13000, "580.65.06", "12.8", "driver.version"),
        (13000, "580.65.06", "13.0", "driver.version"),
        (11040, "470.82.01", "12.6", "driver.too_old"),
    ],
)
def test_driver_against_wheel(
    tmp_path: Path, cuda: int, driver: str, wheel: str, rule: str
) -> None:
    found = with_nvml(facts(tmp_path, cuda=wheel), H200, cuda=cuda, driver=driver)
    assert rule in rows(check_driver, found)


def test_cuda_compat_makes_an_old_driver_work(tmp_path: Path) -> None:
    found = with_nvml(facts(tmp_path, cuda="13.0"), H200, cuda=12020, driver="535.104.05")
    found = with_task(found, "device", {"cuda_available": True})
    assert rows(check_driver, found)["driver.compat"].status == "ok"


@pytest.mark.parametrize(("status", "said"), [(802, "fabricmanager"), (803, "reboot")])
def test_what_cu_init_says(tmp_path: Path, status: int, said: str) -> None:
    found = with_nvml(facts(tmp_path, cuda="13.0"), H200)
    found = replace(found, nvml=replace(found.nvml, cu_init=status))
    assert said in rows(check_driver, found)["driver.cu_init"].remedy


def test_text_in_place_of_numbers_is_not_a_value(tmp_path: Path) -> None:
    found = with_nvml(facts(tmp_path, cuda="13.0"), {**H200, "power": "N/A", "utilization": "N/A"})
    row = rows(check_devices, found)["nvml.field"]
    assert "utilization, power: n/a" in row.found
    assert "'N/A'" in row.found


def test_memory_is_asked_of_torch_where_nvml_has_none(tmp_path: Path) -> None:
    device = {key: value for key, value in H200.items() if key != "memory"}
    found = with_nvml(facts(tmp_path, cuda="13.0"), device)
    refused = {"memory": type(found.nvml.devices[0].get("name"))(error="NotSupported")}
    fields = {**found.nvml.devices[0].fields, **refused}
    found = replace(
        found, nvml=replace(found.nvml, devices=(replace(found.nvml.devices[0], fields=fields),))
    )
    told = {"cuda_device": 0, "name": "x", "memory_bytes": 140_000_000_000, "uuid": UUIDS[0]}
    found = with_task(found, "device", {"cuda_available": True}, told)
    answers = rows(check_devices, found)
    assert "140.0 GB (from torch)" in answers["device"].found
    assert "memory is asked of torch instead" in answers["nvml.field"].found


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"ecc_uncorrected": 3}, "device.ecc"),
        ({"throttle_reasons": 0x40}, "device.throttled"),
        ({"compute_mode": 2}, "device.compute_mode"),
        ({"memory": {"total_bytes": 100, "used_bytes": 50}}, "device.memory_taken"),
        ({"pcie_link": {"width": 4, "max_width": 16}}, "device.pcie"),
        ({"mig_mode": 1}, "device.mig"),
    ],
)
def test_health_of_a_gpu(tmp_path: Path, fields: dict[str, Any], rule: str) -> None:
    found = with_nvml(facts(tmp_path, cuda="13.0"), {**H200, **fields})
    assert rule in rows(check_devices, found)


@pytest.mark.parametrize(
    ("value", "rule", "said"),
    [
        ("2,3", "devices.visible", f"0 = GPU 2 {UUIDS[2]}; 1 = GPU 3 {UUIDS[3]}"),
        ("3,2", "devices.visible", f"0 = GPU 3 {UUIDS[3]}; 1 = GPU 2 {UUIDS[2]}"),
        (UUIDS[1], "devices.visible", f"0 = GPU 1 {UUIDS[1]}"),
        ("GPU-31", "devices.visible", f"0 = GPU 3 {UUIDS[3]}"),
        ("MIG-abc", "devices.visible", "0 = MIG-abc"),
        ("", "devices.hidden", "hides all 4 GPUs"),
        ("7", "devices.unknown", "'7' names no GPU"),
        ("GPU-", "devices.unknown", "'GPU-' names no GPU"),
    ],
)
def test_visible_devices_by_identity(tmp_path: Path, value: str, rule: str, said: str) -> None:
    found = with_nvml(facts(tmp_path, cuda="13.0"), *({**H200, "uuid": uuid} for uuid in UUIDS))
    answers = rows(check_devices, with_environ(found, CUDA_VISIBLE_DEVICES=value))
    assert said in answers[rule].found


def test_the_order_of_unlike_gpus(tmp_path: Path) -> None:
    two = ({**H200, "name": "A"}, {**H200, "name": "B", "uuid": UUIDS[1]})
    found = with_nvml(facts(tmp_path, cuda="13.0"), *two)
    assert "devices.order" in rows(check_devices, with_environ(found, CUDA_VISIBLE_DEVICES="0"))
    by_bus = with_environ(found, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert "devices.order" not in rows(check_devices, by_bus)


def test_torch_that_does_not_reach_the_gpu(tmp_path: Path) -> None:
    found = with_nvml(facts(tmp_path, cuda="13.0"), H200)
    found = with_task(found, "device", {"cuda_available": False, "cuda_error": "No CUDA GPUs"})
    assert rows(check_cuda, found)["cuda.unavailable"].found.endswith("No CUDA GPUs")


def test_what_follows_from_the_driver_is_no_second_error(tmp_path: Path) -> None:
    found = with_nvml(facts(tmp_path, cuda="13.0"), H200, cuda=12020, driver="535.104.05")
    found = with_task(found, "device", {"cuda_available": False, "cuda_error": "too old"})
    assert rows(check_cuda, found)["cuda"].status == "not_checked"


def test_a_kernel_that_crashes(tmp_path: Path) -> None:
    found = with_nvml(facts(tmp_path, cuda="13.0"), H200)
    found = with_task(
        found, "device", {"cuda_available": True}, {"running": "kernel", "cuda_device": 0}, ended=-6
    )
    assert rows(check_cuda, found)["cuda.crash"].found == "crashed (SIGABRT) in kernel"


def test_precisions_that_ran(tmp_path: Path) -> None:
    ran = ({"ran": "bf16", "ok": True}, {"ran": "fp8", "ok": False, "error": "needs 8.9"})
    answers = rows(check_precisions, with_task(facts(tmp_path, cuda="13.0"), "device", *ran))
    assert answers["precision.bf16"].found == "a bf16 matrix multiplication ran"
    assert answers["precision.fp8"].status == "ok"
    assert "needs 8.9" in answers["precision.fp8"].found


def _attention(tmp_path: Path, **flash: Any) -> dict[str, Row]:
    replies = (
        {"cuda_available": True},
        {"attention": "FLASH_ATTENTION", "on": "cuda", **flash},
        {"attention": "MATH", "on": "cuda", "ok": True, "difference": 0.0},
    )
    return rows(check_attention, with_task(facts(tmp_path, cuda="13.0"), "device", *replies))


def test_attention_backends(tmp_path: Path) -> None:
    assert "flash, math ran on the GPU" in _attention(tmp_path, ok=True)["attention"].found
    refused = _attention(tmp_path, ok=False, error="No available kernel")
    assert refused["attention.no_flash"].status == "warning"
    wrong = _attention(tmp_path, ok=False, difference=1.0)
    assert wrong["attention.wrong_result"].status == "error"


def test_a_recording_without_device_rows(tmp_path: Path) -> None:
    said = {"profiler_host_rows": 9, "profiler_device_rows": 0, "profiler_cuda": True}
    found = with_task(facts(tmp_path, cuda="13.0"), "profiler", said)
    assert "CUPTI" in rows(check_profiler, found)["profiler.no_device_rows"].found


def test_private_interfaces_that_are_there_are_one_line_of_text() -> None:
    rows = (
        ok("interfaces", "private interface", "A._b: found and used"),
        warning("interfaces.fallback", "private interface", "D._e: not in torch", "wait"),
        ok("interfaces", "private interface", "F._g: found and used"),
    )
    lines = [line.plain for line in doctor_lines(Diagnosis({"tracer": rows}), 100)]
    assert [line for line in lines if "2 that tracer uses are in this torch" in line]
    assert [line for line in lines if "D._e" in line]
    assert not [line for line in lines if "A._b" in line or "F._g" in line]


def test_private_interfaces(tmp_path: Path) -> None:
    listed = {"interfaces": [["A._b", True, "c"], ["D._e", False, "the exported file"]]}
    found = with_task(facts(tmp_path, cuda=None), "interfaces", listed)
    first, second = check_interfaces(found)
    assert first.status == "ok"
    assert first.found == "A._b: found and used; without it, c"
    assert second.status == "warning"
    assert second.found.startswith("D._e: not in torch")
    assert second.detail == {"name": "D._e", "fallback": "the exported file"}


def test_extension_built_for_another_torch(tmp_path: Path) -> None:
    found = with_task(facts(tmp_path, cuda="13.0", cxx11_abi=True), "extension:flash-attn")
    found = replace(
        found,
        extensions=("flash-attn",),
        versions={"flash-attn": "2.8.3+cu12torch2.6cxx11abiFALSE"},
        requirements={"flash-attn": ("torch==2.6.0",)},
    )
    row = rows(check_extensions, found)["extension.built_for_other"]
    for said in ("built for torch 2.6", "built for CUDA 12", "C++ ABI", "asks for torch 2.6.0"):
        assert said in row.found


def test_extension_that_hides_its_failure(tmp_path: Path) -> None:
    said = {"imported": True, "hidden_failure": "undefined symbol: abc"}
    found = replace(
        with_task(facts(tmp_path, cuda="13.0"), "extension:xformers", said),
        extensions=("xformers",),
    )
    row = rows(check_extensions, found)["extension.hidden_failure"]
    assert "its compiled part does not: undefined symbol: abc" in row.found


def test_libraries_before_the_wheels(tmp_path: Path) -> None:
    write(tmp_path, {"/opt/cuda/lib64/libcudnn.so.9": "", "/opt/other/readme": ""})
    found = with_environ(
        facts(tmp_path, cuda="13.0"),
        LD_LIBRARY_PATH="/opt/cuda/lib64:/opt/other:/gone",
        LD_PRELOAD="/x.so",
    )
    answers = rows(check_libraries, found)
    assert "/opt/cuda/lib64: cudnn" in answers["libraries.shadowed"].found
    assert answers["libraries.preload"].status == "warning"


def test_libraries_loaded_twice(tmp_path: Path) -> None:
    base = facts(tmp_path, cuda="13.0")
    paths = ("/a/libcudart.so.13", "/b/libcudart.so.12", "/a/libnccl.so.2")
    found = replace(
        base,
        torch=replace(base.torch, libraries=paths),
        versions={"nvidia-cudnn-cu12": "9", "nvidia-cudnn-cu13": "9"},
    )
    answers = rows(check_libraries, found)
    assert "cudart: /a/libcudart.so.13, /b/libcudart.so.12" in answers["libraries.double"].found
    assert answers["libraries.packages"].remedy == "pip uninstall those that do not end in -cu13"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("expandable_segments:True,max_split_size_mb:128", None),
        ("roundup_power2_divisions:[256:1,512:2,>:4]", None),
        ("expandable_segment:True", "`expandable_segment` is unknown"),
        ("expandable_segments:1", "True or False"),
        ("max_split_size_mb:8", "more than 20"),
        ("garbage_collection_threshold:2", "between 0 and 1"),
        ("backend:cuda", "native or cudaMallocAsync"),
        ("max_split_size_mb", "has no value"),
    ],
)
def test_allocator_settings(tmp_path: Path, value: str, said: str | None) -> None:
    found = with_environ(facts(tmp_path), PYTORCH_CUDA_ALLOC_CONF=value)
    row = rows(check_variables, found)["variables.allocator"]
    assert row.status == ("ok" if said is None else "error")
    assert said is None or said in row.found


def test_variables_that_cost(tmp_path: Path) -> None:
    write(tmp_path, {"/sys/class/net/eth0/x": "", "/sys/class/net/lo/x": ""})
    found = with_environ(
        facts(tmp_path),
        CUDA_LAUNCH_BLOCKING="1",
        NCCL_P2P_DISABLE="0",
        NCCL_SOCKET_IFNAME="ib0",
        NCCL_ALGO="Ring",
        PYTORCH_ALLOC_CONF="",
        PYTORCH_CUDA_ALLOC_CONF="",
    )
    answers = list(check_variables(found))
    costly = [row.subject for row in answers if row.rule == "variables.costly"]
    assert costly == ["CUDA_LAUNCH_BLOCKING"]
    by_rule = rows_by_rule(tuple(answers))
    assert "(eth0, lo)" in by_rule["variables.interface"].found
    assert "NCCL_ALGO=Ring" in by_rule["variables.noted"].found
    assert "unset PYTORCH_CUDA_ALLOC_CONF" in by_rule["variables.allocator_twice"].remedy


def test_host_limits(tmp_path: Path) -> None:
    cpu = "/sys/devices/system/cpu/cpu0/cpufreq"
    node = "/sys/devices/system/node"
    gpu = "/sys/bus/pci/devices/0000:3b:00.0"
    write(
        tmp_path,
        {
            f"{cpu}/scaling_governor": "powersave\n",
            f"{cpu}/scaling_driver": "acpi-cpufreq\n",
            "/sys/fs/cgroup/cpu.max": "50000 100000",
            "/sys/fs/cgroup/cpu.stat": "nr_periods 1000\nnr_throttled 400\n",
            "/sys/fs/cgroup/memory.max": "1000000000",
            "/sys/fs/cgroup/memory.current": "950000000",
            "/proc/meminfo": "MemTotal: 64000000 kB\n",
            f"{node}/node0/x": "",
            f"{node}/node1/x": "",
            f"{gpu}/vendor": "0x10de",
            f"{gpu}/class": "0x030200",
            f"{gpu}/numa_node": "1",
            "/proc/sys/kernel/numa_balancing": "1",
        },
    )
    found = with_environ(facts(tmp_path), OMP_NUM_THREADS="64")
    answers = rows(check_host, found)
    assert answers["host.governor"].status == "warning"
    assert "40%" in answers["host.cpu_throttled"].found
    assert answers["host.threads"].remedy == "export OMP_NUM_THREADS=1"
    assert "0.9 GB are taken" in answers["host.memory_limit"].found
    assert "GPU at 0000:3b:00.0 on node 1" in answers["host.numa_balancing"].found


def test_powersave_of_the_driver_that_clocks_by_itself(tmp_path: Path) -> None:
    cpu = "/sys/devices/system/cpu/cpu0/cpufreq"
    write(
        tmp_path, {f"{cpu}/scaling_governor": "powersave", f"{cpu}/scaling_driver": "intel_pstate"}
    )
    assert rows(check_host, facts(tmp_path))["host.governor"].status == "ok"


def test_tools_around_the_profiler(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "/proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n",
            "/proc/42/comm": "nv-hostengine\n",
            "/proc/version": "Linux 5.15 Microsoft-standard-WSL2",
            "/.dockerenv": "",
            "/proc/mounts": "shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0\n",
        },
    )
    found = with_environ(facts(tmp_path), CUDA_INJECTION64_PATH="/x.so")
    answers = rows(check_tools, found)
    assert "DCGM (nv-hostengine, pid 42)" in answers["profiler.held"].found
    assert "CUDA_INJECTION64_PATH" in answers["profiler.injected"].found
    assert "administrators" in answers["profiler.permission"].found
    assert "67 MB" in answers["place.shm"].found
    assert answers["place.wsl"].status == "warning"


@pytest.mark.parametrize(
    ("compilers", "rule", "status"),
    [
        ({"g++": "ok", "cc": "ok"}, "compiler", "ok"),
        ({"g++": "missing", "cc": "missing"}, "compiler.missing", "warning"),
        ({"g++": "cannot find crt1.o", "cc": "ok"}, "compiler.broken", "warning"),
    ],
)
def test_compilers(tmp_path: Path, compilers: dict[str, str], rule: str, status: str) -> None:
    found = replace(facts(tmp_path), compilers=compilers)
    assert rows(check_compiler, found)[rule].status == status


def test_compilers_are_run(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no linker >&2\nexit 1\n")
    broken.chmod(0o755)
    machine = Machine(root=tmp_path, environ={"PATH": "", "CXX": str(broken)}, path=())
    answers = probe_compilers(machine, timeout_s=5)
    assert answers["g++"] == "no linker"
    assert answers["cc"] == "missing"


def test_nvcc_of_another_cuda(tmp_path: Path) -> None:
    found = replace(facts(tmp_path, cuda="13.0"), compilers={"cc": "ok", "nvcc": "12.4"})
    assert "12.4" in rows(check_compiler, found)["compiler.nvcc"].found
    assert rows(check_compiler, found)["compiler.nvcc"].status == "warning"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o500)
    found = with_environ(facts(tmp_path), TRITON_CACHE_DIR="/cache/triton")
    assert rows(check_compiler, found)["compiler.folder"].status == "error"


def _amd(root: Path, version: int = 90402) -> None:
    write(
        root,
        {
            "/dev/kfd": "",
            "/sys/module/amdgpu/version": "6.12.12",
            "/sys/class/kfd/kfd/topology/nodes/0/properties": "gfx_target_version 0\n",
            "/sys/class/kfd/kfd/topology/nodes/1/properties": f"gfx_target_version {version}\n",
        },
    )


@pytest.mark.parametrize(
    ("version", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100")]
)
def test_amd_architectures(tmp_path: Path, version: int, name: str) -> None:
    _amd(tmp_path, version)
    assert gfx_names(Machine(root=tmp_path, environ={}, path=())) == [name]


def test_rocm(tmp_path: Path) -> None:
    _amd(tmp_path)
    fits = facts(tmp_path, hip="6.4", architectures=["gfx90a", "gfx942"])
    assert rows(check_rocm, fits)["rocm.architecture"].found == "gfx942"
    assert "amdgpu 6.12.12" in rows(check_rocm, fits)["rocm.driver"].found
    other = facts(tmp_path, hip="6.4", architectures=["gfx1100"])
    assert rows(check_rocm, other)["rocm.no_architecture"].status == "error"
    passed_off = with_environ(other, HSA_OVERRIDE_GFX_VERSION="11.0.0")
    assert rows(check_rocm, passed_off)["rocm.override"].status == "warning"
    assert "rocm6" in rows(check_rocm, facts(tmp_path, numpy=True))["rocm.wheel"].remedy


def test_no_rocm_says_nothing(tmp_path: Path) -> None:
    assert list(check_rocm(facts(tmp_path, cuda="13.0"))) == []

"""`tracer doctor` in fake environments: each trouble named with its remedy, none a crash."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import doctor_fakes as fakes
from tracer.commands import doctor as command
from tracer.commands.doctor_text import verdict
from tracer.environment.ask import ask_python
from tracer.environment.diagnosis import Diagnosis, examine, judge
from tracer.environment.facts import read_nvml
from tracer.environment.machine import Machine
from tracer.environment.rows import Row
from tracer.errors import UsageError


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fakes.build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without files of its own."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    fakes.write_torch(folder)
    return folder


def found(diagnosis: Diagnosis, rule: str) -> Row:
    rows = {row.rule: row for row in diagnosis.rows}
    assert rule in rows, sorted(rows)
    return rows[rule]


def test_no_driver(root: Path, site: Path) -> None:
    row = found(examine(fakes.machine(root, site)), "driver.missing")
    assert row.status == "error"
    assert "no NVIDIA driver" in row.found
    assert "CUDA 13.0" in row.found
    assert "install the NVIDIA driver (>= 580.65.06)" in row.remedy


def test_driver_older_than_the_wheel(root: Path, site: Path, nvml: Path) -> None:
    machine = fakes.machine(
        root, site, libraries=nvml, FAKE_NVML_DRIVER="535.104.05", FAKE_NVML_CUDA="12020"
    )
    diagnosis = examine(machine)
    row = found(diagnosis, "driver.too_old")
    assert row.status == "error"
    assert row.found == "driver 535.104.05 (CUDA 12.2) is older than the wheel's CUDA 13.0 needs"
    assert "update the NVIDIA driver to >= 580.65.06" in row.remedy
    assert "whl/cu126" in row.remedy
    assert row.found in verdict(diagnosis)


def test_wheel_without_this_architecture(root: Path, site: Path, nvml: Path) -> None:
    fakes.write_torch(site, architectures="sm_50 sm_60 sm_70")
    machine = fakes.machine(root, site, libraries=nvml, FAKE_NVML_CAPABILITY="120")
    row = found(examine(machine), "wheel.no_architecture")
    assert row.status == "error"
    assert "sm_120" in row.found
    assert "sm_50 sm_60 sm_70" in row.found
    assert "pip install --upgrade torch" in row.remedy


def test_extension_with_undefined_symbols(root: Path, site: Path) -> None:
    fakes.write_package(site, "flash_attn", "import flash_attn_2_cuda\n")
    fakes.write_broken_extension(site, "flash_attn_2_cuda")
    row = found(examine(fakes.machine(root, site)), "extension.undefined_symbol")
    assert (row.subject, row.status) == ("flash-attn", "error")
    assert "undefined symbol _ZN3c104cuda" in row.found
    assert "built for another torch" in row.remedy
    assert "flash-attn, for torch 2.13.0+cu130" in row.remedy


def test_extension_that_crashes_on_import(root: Path, site: Path) -> None:
    body = "import ctypes\nctypes.string_at(0)\n"
    fakes.write_package(site, "xformers", body)
    fakes.write_package(site, "torchao", "__version__ = '0.9'\n")
    diagnosis = examine(fakes.machine(root, site))
    row = found(diagnosis, "extension.crash")
    assert (row.subject, row.status) == ("xformers", "error")
    assert "crashed (SIGSEGV) on import of xformers (at xformers/__init__.py:2)" in row.found
    assert "pip uninstall xformers to run without it" in row.remedy
    assert found(diagnosis, "extension").found == "torchao 0.9 imports"


def test_extension_that_hangs_on_import(root: Path, site: Path) -> None:
    fakes.write_package(site, "vllm", "import time\ntime.sleep(600)\n")
    row = found(examine(fakes.machine(root, site), timeout_s=6), "extension.slow")
    assert (row.subject, row.status) == ("vllm", "not_checked")
    assert "--timeout" in row.remedy


def test_no_torch(root: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    fakes.write_package(empty, "flash_attn", "import torch\n")
    machine = fakes.machine(root, empty)
    bare = Machine(machine.root, machine.environ, _without_torch(machine))
    diagnosis = examine(bare)
    assert found(diagnosis, "torch.missing").remedy.startswith("pip install torch")
    assert found(diagnosis, "extension.needs_torch").subject == "flash-attn"


def _without_torch(machine: Machine) -> tuple[str, ...]:
    return tuple(folder for folder in machine.path if not (Path(folder) / "torch").is_dir())


def test_torch_that_does_not_import(root: Path, site: Path) -> None:
    (site / "torch/__init__.py").write_text(
        "raise ImportError('libcudart.so.12: cannot open shared object file: No such file')\n"
    )
    row = found(examine(fakes.machine(root, site)), "torch.import")
    assert "libcudart.so.12" in row.found
    assert "is missing" in row.remedy


def test_torch_that_crashes_on_import(root: Path, site: Path) -> None:
    (site / "torch/__init__.py").write_text("import os, signal\nos.kill(os.getpid(), 11)\n")
    row = found(examine(fakes.machine(root, site)), "torch.crash")
    assert "crashed (SIGSEGV) while it was imported (at torch/__init__.py:2)" in row.found
    assert row.remedy.startswith("pip install --force-reinstall torch")


def test_torch_that_does_not_finish_its_import(root: Path, site: Path) -> None:
    (site / "torch/__init__.py").write_text("import time\ntime.sleep(600)\n")
    row = found(examine(fakes.machine(root, site), timeout_s=2), "torch.slow")
    assert row.status == "warning"
    assert "--timeout" in row.remedy


FUNCTIONS = {
    "memory": "nvmlDeviceGetMemoryInfo",
    "utilization": "nvmlDeviceGetUtilizationRates",
    "power": "nvmlDeviceGetPowerUsage",
    "temperature": "nvmlDeviceGetTemperature",
    "SM clock": "nvmlDeviceGetClockInfo",
    "compute mode": "nvmlDeviceGetComputeMode",
    "PCIe link": "nvmlDeviceGetMaxPcieLinkWidth",
    "name": "nvmlDeviceGetName",
    "UUID": "nvmlDeviceGetUUID",
    "PCI address": "nvmlDeviceGetPciInfo_v3",
    "compute capability": "nvmlDeviceGetCudaComputeCapability",
    "processes": "nvmlDeviceGetComputeRunningProcesses_v3",
}
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, LOST, UNKNOWN = 3, 4, 13, 15, 999


def _ask_nvml(root: Path, site: Path, nvml: Path, **environ: str) -> dict[str, Row]:
    """The rows of a driver alone: no torch, no compilers."""
    machine = fakes.machine(root, site, libraries=nvml, **environ)
    base = fakes.facts(root, cuda="13.0")
    answer = ask_python(
        "tracer.environment.probe_nvml",
        {},
        timeout_s=20,
        environ=machine.environ,
        path=machine.path,
    )
    judged = judge(replace(base, machine=machine, nvml=read_nvml(answer)))
    return fakes.rows_by_rule(judged.rows)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nvml_failing_in_one_field(root: Path, site: Path, nvml: Path, name: str) -> None:
    failing = f"{FUNCTIONS[name]}={NO_PERMISSION}"
    rows = _ask_nvml(root, site, nvml, FAKE_NVML_FAIL=failing)
    row = rows["nvml.field"]
    assert row.status == "warning"
    assert name in row.found
    assert "n/a (no permission)" in row.found
    assert "SYS_ADMIN" in row.remedy
    assert rows["device"].status == "ok"


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        (NOT_SUPPORTED, "not_checked", "does not report it"),
        (NOT_FOUND, "warning", "too old"),
        (LOST, "error", "fallen off the bus"),
        (UNKNOWN, "warning", "does not name"),
    ],
)
def test_nvml_errors_by_kind(
    root: Path, site: Path, nvml: Path, code: int, status: str, said: str
) -> None:
    rows = _ask_nvml(root, site, nvml, FAKE_NVML_FAIL=f"nvmlDeviceGetPowerUsage={code}")
    assert rows["nvml.field"].status == status
    assert said in rows["nvml.field"].found
    assert rows["nvml.field"].remedy


@pytest.mark.parametrize(
    ("failing", "rule", "said"),
    [
        ("nvmlInitWithFlags=9", "driver.init", "kernel module is not loaded"),
        ("nvmlInitWithFlags=18", "driver.init", "updated without a reboot"),
        ("nvmlInitWithFlags=4", "driver.init", "may not open the device"),
        ("nvmlSystemGetDriverVersion=999", "driver.version", "CUDA 13.0"),
        ("nvmlDeviceGetCount_v2=999", "nvml.count", "number of GPUs n/a"),
        ("nvmlDeviceGetHandleByIndex_v2=15", "nvml.handle", "fallen off the bus"),
    ],
)
def test_nvml_failing_before_the_fields(
    root: Path, site: Path, nvml: Path, failing: str, rule: str, said: str
) -> None:
    rows = _ask_nvml(root, site, nvml, FAKE_NVML_FAIL=failing)
    assert said in rows[rule].found


def test_everything_in_nvml_fails(root: Path, site: Path, nvml: Path) -> None:
    rows = _ask_nvml(root, site, nvml, FAKE_NVML_FAIL="*=999")
    assert rows["driver.init"].status == "error"


def test_nvml_that_crashes_in_a_field(root: Path, site: Path, nvml: Path) -> None:
    rows = _ask_nvml(root, site, nvml, FAKE_NVML_CRASH="nvmlDeviceGetPowerUsage")
    assert "crashed (SIGSEGV) when asked for power of GPU 0" in rows["driver.crash"].found
    assert rows["driver.crash"].remedy.startswith("reinstall the NVIDIA driver")
    assert "80.0 GB" in rows["device"].found  # told before the crash


def test_a_real_torch_and_no_trouble(root: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    diagnosis = examine(fakes.machine(root, tmp_path / "nothing"))
    assert torch.__version__ in found(diagnosis, "torch.version").found
    named = {row.detail.get("name") for row in diagnosis.rows}
    assert "torch._C._profiler._RecordFunctionFast" in named
    if torch.version.cuda is None:
        assert "math" in found(diagnosis, "attention").found
        assert found(diagnosis, "profiler").status == "ok"


def _args(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(argv)


def test_json_and_exit_status(
    root: Path, site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = examine(fakes.machine(root, site))
    monkeypatch.setattr("tracer.environment.diagnosis.examine", lambda timeout_s: broken)
    assert command.run(_args("--json")) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tracer.doctor/1"
    assert document["status"] == "error"
    assert document["counts"]["error"] == sum(r["status"] == "error" for r in document["rows"])
    for row in document["rows"]:
        assert set(row) == {"family", "rule", "subject", "status", "found", "remedy", "detail"}
        assert row["remedy"] or row["status"] in ("ok", "not_checked")


@pytest.mark.parametrize("columns", [80, 120])
def test_text_says_the_answer_first_and_fits(
    root: Path,
    site: Path,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = examine(fakes.machine(root, site))
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("tracer.environment.diagnosis.examine", lambda timeout_s: broken)
    command.run(_args())
    lines = capsys.readouterr().out.splitlines()
    count = broken.count("error")
    assert lines[0].startswith(f"{count} error")
    assert max(map(len, lines)) <= columns
    assert not any("\x1b" in line for line in lines)


def test_a_sound_environment_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = Diagnosis({"torch": (Row("torch.version", "torch", "ok", "torch 2.13.0"),)})
    monkeypatch.setattr("tracer.environment.diagnosis.examine", lambda timeout_s: sound)
    assert command.run(_args()) == 0
    assert capsys.readouterr().out.splitlines()[0] == "This environment is sound."


def test_names_from_the_environment_are_not_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row("x", "[red]subject", "warning", "found \x1b[31m[bold]", "remedy [/bold]")
    monkeypatch.setattr(
        "tracer.environment.diagnosis.examine", lambda timeout_s: Diagnosis({"x": (row,)})
    )
    assert command.run(_args()) == 0
    text = capsys.readouterr().out
    assert "[red]subject" in text
    assert "\x1b" not in text
    assert "[bold]" in text


def test_wrong_usage() -> None:
    with pytest.raises(UsageError):
        command.run(_args("--timeout", "0"))


def test_doctor_and_plan_need_nothing_that_may_be_broken() -> None:
    """A broken numpy, pandas or torch must not keep the two from saying so."""
    code = (
        "import sys, tracer.commands.doctor, tracer.commands.plan\n"
        "heavy = {'torch', 'numpy', 'pandas', 'pyarrow', 'transformers', 'pynvml', 'textual'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"

"""Device counters: which device they are of, and what happens when one does not exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tracer.collectors import nvml
from tracer.collectors.device_identity import Identity, Installed, find_handle, visible_identities
from tracer.collectors.nvml import DeviceMetrics, TorchDevices

HERE = Path(__file__).parent
UUIDS = [f"GPU-{str(i) * 8}-aaaa-0000-0000-000000000000" for i in range(4)]
PARTITION = "MIG-44444444-aaaa-0000-0000-000000000000"
MEMORY = "memory_used_bytes"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stand-in library."""
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-o", str(target), str(HERE / "fake_nvml.c")]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here to build the stand-in for the driver's library")
    return folder


class Program:
    """A process that has the stand-in for the driver's library."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "LD_LIBRARY_PATH": str(folder)}
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            environment.pop(name, None)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "fake_nvml_program.py")],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, *devices: str, **variables: str) -> Any:
        """What four samples of these devices give."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"devices": devices, "variables": variables}),
            file=self._process.stdin,
            flush=True,
        )
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def sampled(library: Path) -> Generator[Program]:
    program = Program(library)
    yield program
    program.close()


# Case 40: which device


@pytest.mark.parametrize(
    ("devices", "memory"),
    [
        ([f"0:{UUIDS[2]}", f"1:{UUIDS[3]}"], {"0": 300.0, "1": 400.0}),
        ([f"0:{UUIDS[3]}", f"1:{UUIDS[2]}"], {"0": 400.0, "1": 300.0}),
        ([f"0:{UUIDS[1].removeprefix('GPU-')}"], {"0": 200.0}),
        (["0:pci:00000000:12:00.0"], {"0": 300.0}),
        ([f"0:{PARTITION}"], {"0": 500.0}),
        ([f"0:{PARTITION.removeprefix('MIG-')}"], {"0": 500.0}),
        ([], {}),
    ],
)
def test_counters_follow_the_identity_of_the_device(
    sampled: Program, devices: list[str], memory: dict[str, float]
) -> None:
    found = sampled(*devices)
    assert {number: fields[MEMORY][0] for number, fields in found["values"].items()} == memory


@pytest.mark.parametrize("device", ["0:GPU-99999999-0000-0000-0000-000000000000", "0:pci:ff:ff.0"])
def test_a_device_that_cannot_be_established_has_no_counters(sampled: Program, device: str) -> None:
    found = sampled(device)
    assert found["values"] == {}
    assert found["notes"] == [
        "no counters of device 0: its UUID or PCI address is not the driver's"
    ]


@pytest.mark.parametrize(
    ("visible", "memory"),
    [("2,3", [300.0, 400.0]), ("3,2", [400.0, 300.0]), (UUIDS[1], [200.0]), ("GPU-11", [200.0])],
)
def test_without_an_identity_the_variables_decide(
    sampled: Program, visible: str, memory: list[float]
) -> None:
    devices = [f"{i}:" for i in range(len(memory))]
    found = sampled(*devices, CUDA_VISIBLE_DEVICES=visible)
    assert [found["values"][str(i)][MEMORY][0] for i in range(len(memory))] == memory


def test_a_number_alone_says_nothing_where_the_devices_differ(sampled: Program) -> None:
    mixed = {"FAKE_NVML_MIXED": "1", "CUDA_VISIBLE_DEVICES": "2"}
    assert sampled("0:", **mixed)["values"] == {}
    ordered = sampled("0:", **mixed, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert ordered["values"]["0"][MEMORY] == [300.0] * 4


INSTALLED = [Installed(i, uuid, f"pci{i}", "A") for i, uuid in enumerate(UUIDS)]


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, UUIDS),
        ("", []),
        ("-1", []),
        ("2,3", [UUIDS[2], UUIDS[3]]),
        ("3,2", [UUIDS[3], UUIDS[2]]),
        ("1,-1,2", [UUIDS[1]]),
        ("1,9,2", [UUIDS[1]]),
        ("1,1", []),
        (UUIDS[3], [UUIDS[3]]),
        ("GPU-33", [UUIDS[3]]),
        ("GPU-", []),
        (PARTITION, [PARTITION]),
        ("nonsense", []),
    ],
)
def test_the_variable_is_read_as_the_framework_reads_it(
    visible: str | None, uuids: list[str]
) -> None:
    assert [i.uuid for i in visible_identities(visible, None, INSTALLED)] == uuids


def test_identity_is_never_guessed() -> None:
    assert find_handle(Identity(0), INSTALLED, lambda uuid: None) is None
    assert find_handle(Identity(0, "", "pci2"), INSTALLED, lambda uuid: None) == 2


# Case 39: counters that do not exist


def test_all_fields_of_a_device(sampled: Program) -> None:
    found = sampled(f"0:{UUIDS[1]}")
    assert {name: values[0] for name, values in found["values"]["0"].items()} == {
        "gpu_utilization_ratio": 0.2,
        "memory_utilization_ratio": 0.02,
        "memory_used_bytes": 200.0,
        "power_watts": 2.0,
        "temperature_celsius": 41.0,
        "sm_clock_hertz": 1_001_000_000.0,
        "memory_clock_hertz": 2_001_000_000.0,
        "throttle_reasons": 1.0,
    }
    assert found["notes"] == []


def test_a_field_that_is_not_supported_is_absent_with_the_reason(sampled: Program) -> None:
    found = sampled(f"0:{UUIDS[0]}", f"1:{UUIDS[1]}", FAKE_NVML_BROKEN="utilization")
    assert "gpu_utilization_ratio" not in found["values"]["0"]
    assert found["values"]["1"]["power_watts"] == [2.0] * 16
    assert found["notes"] == [
        "gpu_utilization_ratio: n/a on 2 of 2 devices (Not Supported)",
        "memory_utilization_ratio: n/a on 2 of 2 devices (Not Supported)",
    ]


def test_a_partition_has_some_fields_and_the_other_device_all(sampled: Program) -> None:
    found = sampled(f"0:{PARTITION}", f"1:{UUIDS[1]}")
    assert "gpu_utilization_ratio" not in found["values"]["0"]
    assert found["values"]["1"]["gpu_utilization_ratio"] == [0.2] * 4
    assert "gpu_utilization_ratio: n/a on 1 of 2 devices (Not Supported)" in found["notes"]


def test_memory_comes_from_the_framework_where_the_driver_has_none(sampled: Program) -> None:
    found = sampled(f"0:{UUIDS[0]}", FAKE_NVML_BROKEN="memory")
    assert found["values"]["0"][MEMORY] == [7.0] * 4
    (note,) = found["notes"]
    assert note == (
        "memory_used_bytes: n/a on 1 of 1 devices (Not Supported); the framework's own query is "
        "used instead"
    )


def test_a_field_that_fails_now_and_then_keeps_its_good_samples(sampled: Program) -> None:
    found = sampled(f"0:{UUIDS[0]}", FAKE_NVML_BROKEN="/power")
    assert found["values"]["0"]["power_watts"] == [1.0] * 8
    assert found["notes"] == ["power_watts: 8 of 16 samples failed (Unknown Error)"]


def test_without_the_library_there_is_one_notice(tmp_path: Path) -> None:
    program = Program(tmp_path)
    assert "NVML Shared Library Not Found" in program(f"0:{UUIDS[0]}")["error"]
    program.close()
    metrics = DeviceMetrics(_Nothing())
    metrics.start()
    metrics.close()
    assert len(metrics.notes()) == 1
    assert metrics.notes()[0].message.startswith("device counters are not available")
    assert len(metrics.table()) == 0


class _Nothing:
    """A framework that is never asked: the library is missing."""

    def used_devices(self) -> list[Identity]:
        raise AssertionError

    def memory_used_bytes(self, number: int) -> int:
        raise AssertionError


class _Texts:
    """A driver that answers with a text."""

    NVMLError = OSError

    def __getattr__(self, name: str) -> Any:
        return lambda *args: "N/A"


def test_a_text_where_a_number_should_be_is_not_a_value() -> None:
    class One(_Nothing):
        def used_devices(self) -> list[Identity]:
            return [Identity(0, "GPU-1")]

        def memory_used_bytes(self, number: int) -> int:
            return 5

    metrics = DeviceMetrics(One())
    metrics._nvml = _Texts()
    metrics._installed = [Installed("handle", "GPU-1", "", "A")]
    metrics.sample()
    assert set(metrics.table()["metric"]) == {MEMORY}
    notes = {note.detail["metric"]: note.message for note in metrics.notes()}
    assert "N/A" in notes["throttle_reasons"]
    assert all(note.detail["devices_counted"] == 0 for note in metrics.notes())


def test_the_framework_is_asked_until_it_names_a_device_and_then_once_a_second() -> None:
    asked: list[int] = []

    class Later(_Nothing):
        def used_devices(self) -> list[Identity]:
            asked.append(len(asked))
            return [Identity(0, "GPU-1")] if len(asked) > 3 else []

    metrics = DeviceMetrics(Later())
    metrics._nvml = _Texts()
    metrics._installed = [Installed("handle", "GPU-1", "", "A")]
    for _ in range(3):
        metrics.sample()
    assert len(asked) == 3
    for _ in range(20):
        metrics.sample()
    assert len(asked) == 5


def test_a_device_that_is_not_used_is_not_asked_for() -> None:
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        pytest.skip("an earlier test has used the GPU")
    assert TorchDevices().used_devices() == []
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def test_what_changes_slowly_is_asked_for_in_every_fifth_sample(sampled: Program) -> None:
    """Each answer costs the program a turn of the interpreter."""
    values = sampled(f"0:{UUIDS[0]}")["values"]["0"]
    assert {len(seen) for name, seen in values.items() if name in nvml._OFTEN} == {16}
    assert {len(seen) for name, seen in values.items() if name not in nvml._OFTEN} == {4}


def test_the_library_is_opened_once_and_a_trace_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes the driver long, which holds up the steps that run meanwhile."""
    opened: list[int] = []

    class Driver(_Texts):
        def nvmlInit(self) -> None:
            time.sleep(0.05)
            opened.append(0)

        def nvmlDeviceGetCount(self) -> int:
            return 1

        def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
            raise self.NVMLError

    monkeypatch.setitem(sys.modules, "pynvml", Driver())
    monkeypatch.setattr(nvml, "_library", None)
    for _ in range(2):
        metrics = DeviceMetrics(TorchDevices())
        metrics.start()
        assert len(opened) == 1
        assert len(metrics._installed) == 1
        metrics.close()

"""Run with the stand-in library: for each line of stdin, devices and variables as JSON, samples the
devices and prints what came of it."""

from __future__ import annotations

import json
import os
import sys

from tracer.collectors import nvml
from tracer.collectors.device_identity import Identity
from tracer.collectors.nvml import DeviceMetrics

SAMPLES = 16  # of all fields four


class FakeFramework:
    """Devices as the arguments name them: "number:uuid" or "number:pci:address" or "number:"."""

    def __init__(self, words: list[str]) -> None:
        self.devices = [self._identity(word) for word in words]

    def _identity(self, word: str) -> Identity:
        number, _, rest = word.partition(":")
        if rest.startswith("pci:"):
            return Identity(int(number), "", rest.removeprefix("pci:"))
        return Identity(int(number), rest)

    def used_devices(self) -> list[Identity]:
        return self.devices

    def memory_used_bytes(self, number: int) -> int:
        return 7 + number


def sample(words: list[str]) -> dict[str, object]:
    nvml._library = None  # another driver, which is opened once a process
    metrics = DeviceMetrics(FakeFramework(words))
    try:
        metrics.open()
        for _ in range(SAMPLES):
            metrics.sample()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    table = metrics.table()
    values: dict[str, dict[str, list[float]]] = {}
    for device, metric, value in zip(table["device"], table["metric"], table["value"], strict=True):
        values.setdefault(str(device), {}).setdefault(str(metric), []).append(value)
    return {"values": values, "notes": [note.message for note in metrics.notes()]}


def main() -> None:
    before = dict(os.environ)
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.update(request["variables"])
        print(json.dumps(sample(request["devices"])), flush=True)
        for name in request["variables"]:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


if __name__ == "__main__":
    main()

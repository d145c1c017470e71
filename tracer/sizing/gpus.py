"""GPUs as the arithmetic needs them: memory, bandwidth, dense peak rates."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from tracer.errors import UsageError

GB = 1_000_000_000
TERA = 1_000_000_000_000


@dataclass(frozen=True)
class Gpu:
    """A device. None: not known, and then no figure is made from it."""

    name: str
    memory_bytes: int | None
    bandwidth_bytes_per_s: float | None
    measured_copy_bytes_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    basis: str = "datasheet, dense"
    kind: str = "GPU"

    def peak(self, precision: str) -> float | None:
        """The matmul rate for weights of this precision; 4-bit and int8 weights are multiplied in
        16 bit, which is what the common kernels do."""
        if precision == "fp8" and self.fp8_flops_per_s is not None:
            return self.fp8_flops_per_s
        return self.bf16_flops_per_s


@lru_cache(maxsize=1)
def gpu_table() -> tuple[Gpu, ...]:
    """The GPUs known by name. Memory is the nominal gigabytes, which each such card has at least
    when ECC and the driver took their share."""
    return tuple(_gpu(row) for row in _rows())


def _rows() -> list[dict[str, str]]:
    text = files("tracer.sizing").joinpath("gpus.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _scaled(value: str, factor: int) -> float | None:
    return float(value) * factor if value else None


def _gpu(row: Mapping[str, str]) -> Gpu:
    return Gpu(
        name=row["name"],
        memory_bytes=int(float(row["memory_gb"]) * GB),
        bandwidth_bytes_per_s=_scaled(row["bandwidth_gb_per_s"], GB),
        measured_copy_bytes_per_s=_scaled(row["measured_copy_gb_per_s"], GB),
        bf16_flops_per_s=_scaled(row["bf16_tflops"], TERA),
        fp8_flops_per_s=_scaled(row["fp8_tflops"], TERA),
    )


def _plain(name: str) -> str:
    """`NVIDIA GeForce RTX 4090` and `rtx4090` compare alike."""
    bare = re.sub(r"nvidia|geforce|amd|instinct|tesla", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", bare)


def match_gpu(name: str) -> Gpu | None:
    """The GPU of the table with this name, a common short form, or a driver's long one."""
    wanted = _plain(name)
    for row in _rows():
        names = [row["name"], *filter(None, row["aliases"].split(";"))]
        if wanted in {_plain(known) for known in names}:
            return _gpu(row)
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    usable = [row for row in _rows() if _is_model(row["name"], words) and _same_form(row, wanted)]
    return _gpu(usable[0]) if len(usable) == 1 else None


def _is_model(known: str, words: set[str]) -> bool:
    """Whether the words of a driver's name hold the model of the table: `H100`, `RTX 4090`."""
    model = re.sub(r"\b(sxm|pcie|\d+gb)\b", "", known.lower()).split()
    return set(model) <= words


def _same_form(row: Mapping[str, str], wanted: str) -> bool:
    """A PCIe card is another GPU than the SXM module, and another memory another card."""
    known = _plain(row["name"])
    told = re.findall(r"pcie|nvl|40gb|64gb|96gb|ada|laptop|super|mobile|mig", wanted)
    if "pcie" in known and "pcie" not in wanted:
        return False
    return all(form in known for form in told)


def named_gpu(name: str) -> Gpu:
    """Like `match_gpu`, but an unknown name is a wrong argument."""
    found = match_gpu(name)
    if found is None:
        known = ", ".join(gpu.name for gpu in gpu_table())
        raise UsageError(
            f"{name}: not in the GPU table ({known}); give --gpu-memory, --bandwidth and --flops, "
            "or --measure on the machine",
            rule="plan.gpu",
        )
    return found

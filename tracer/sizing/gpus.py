"""GPUs as the arithmetic needs them: memory, bandwidth, dense peak rates."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from tracer.errors import UsageError
from tracer.near import hint

GB = 1_000_000_000
TERA = 1_000_000_000_000
# Words of a driver's name that tell no card from another. An SXM3 module has another memory than
# the SXM2 module of its name.
_SOCKETS = frozenset(("sxm", "sxm2", "sxm4", "sxm5", "sxm6", "oam"))
_SAME_CARD = frozenset(
    (
        *("nvidia", "geforce", "tesla", "amd", "instinct", "gpu", "graphics", "generation"),
        *("edition", "ac", "vf", "hbm2", "hbm2e", "hbm3", "hbm3e"),
    )
)


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
    """The GPUs known by name, each from the source that its row names. Memory is the nominal
    gigabytes, which each such card has at least when ECC and the driver took their share. Rates are
    dense, in GeForce cards those with FP32 accumulation, as frameworks ask for it."""
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
    wanted, words = _plain(name), _words(name)
    for row in _rows():
        names = [row["name"], *filter(None, row["aliases"].split(";"))]
        if wanted in {_plain(known) for known in names}:
            return _gpu(row)
    usable = [row for row in _rows() if _is_called(row, words)]
    return _gpu(usable[0]) if len(usable) == 1 else None


def _is_called(row: Mapping[str, str], words: set[str]) -> bool:
    """Whether a driver's name means this row: it has all words of the model, and no other that
    may mean another card, such as `PCIe`, `Laptop`, `D`, a memory of another size, or a share of
    the card (`MIG 1g.10gb`, `24Q`)."""
    memory = f"{row['memory_gb']}gb"
    model = _words(row["name"]) - {memory}
    return model <= words <= model | _SAME_CARD | {memory}


def _words(name: str) -> set[str]:
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    return {word for word in words if word not in _SOCKETS}


def named_gpu(name: str) -> Gpu:
    """Like `match_gpu`, but an unknown name is a wrong argument."""
    found = match_gpu(name)
    if found is None:
        near = hint(name, [gpu.name for gpu in gpu_table()])
        raise UsageError(
            f"{name}: not in the GPU table{near} (`tracer plan -h` lists it); give --gpu-memory, "
            "--bandwidth and --flops, or --measure on the machine",
            rule="plan.gpu",
        )
    return found

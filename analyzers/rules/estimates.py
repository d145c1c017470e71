"""What a piece of work would take on the fast path: arithmetic from shapes and the device's limits.

An estimate, never a measurement: whoever prints one prints its basis beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analyzers.facts.arguments import Shape
from tracer.events import Trace
from tracer.sizing.gpus import match_gpu

# Shares of the datasheet that good kernels reach: a large bf16 product on an H200 0.79 of the
# tensor-core rate and a device copy 0.89 of the bandwidth; fused attention forward about 0.35.
PRODUCT_RATIO, ATTENTION_RATIO, BANDWIDTH_RATIO = 0.7, 0.35, 0.8
# No product ends much sooner, however small: one wave of blocks, the way through memory.
SHORTEST_NS = 5_000
_ITEM_BYTES = {"bf16": 2, "tf32": 4}


@dataclass(frozen=True)
class DeviceLimits:
    """Rates of the tensor cores and of the memory, from the datasheet of the recorded GPU."""

    name: str
    bf16_flops_per_s: float
    bandwidth_bytes_per_s: float
    fp8_flops_per_s: float | None = None

    def rate(self, precision: str) -> float | None:
        """Flops a second of products in this precision; None where it is not known."""
        rates = {"fp8": self.fp8_flops_per_s, "bf16": self.bf16_flops_per_s}
        return self.product_rate(precision) if precision == "tf32" else rates.get(precision)

    def product_rate(self, precision: str) -> float:
        """TF32 runs at half the rate of bf16 on every GPU of the table that has it."""
        return self.bf16_flops_per_s / (2 if precision == "tf32" else 1)


def device_limits(trace: Trace) -> DeviceLimits | None:
    """The limits of the recorded devices; None for unknown, or several different ones. One without
    a name beside others is taken for their like."""
    names = set(trace.table("devices")["name"].astype(str)) - {""}
    gpu = match_gpu(names.pop()) if len(names) == 1 else None
    if gpu is None or gpu.bf16_flops_per_s is None or gpu.bandwidth_bytes_per_s is None:
        return None
    rates = gpu.bf16_flops_per_s, gpu.bandwidth_bytes_per_s, gpu.fp8_flops_per_s
    return DeviceLimits(gpu.name, *rates)


@dataclass(frozen=True)
class Product:
    """A matrix product: `batch` times (m x k) by (k x n)."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def elements(self) -> int:
        """Of both operands and the result."""
        return self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)

    @property
    def smallest(self) -> int:
        return min(self.m, self.n, self.k)


_FIRST_OPERAND = {
    "aten::mm": 0, "aten::bmm": 0, "aten::_scaled_mm": 0, "aten::_int_mm": 0, "aten::addmm": 1,
    "aten::addmm_": 1, "aten::baddbmm": 1, "aten::baddbmm_": 1, "aten::_addmm_activation": 1,
}  # fmt: skip


def product_of(operator: str, shapes: tuple[Shape, ...]) -> Product | None:
    """The product that an operator computes; None where its shapes do not tell."""
    first = _FIRST_OPERAND.get(operator)
    if first is None or len(shapes) < first + 2:
        return None
    left, right = shapes[first], shapes[first + 1]
    if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2]:
        return None
    return Product(left[0] if len(left) == 3 else 1, left[-2], right[-1], left[-1])


def second_operand(operator: str, shapes: tuple[Shape, ...]) -> Shape:
    """The shape of what a product multiplies its input by; (0,) where it is not recorded."""
    place = _FIRST_OPERAND.get(operator, 0) + 1
    return shapes[place] if len(shapes) > place and shapes[place] else (0,)


def product_ns(product: Product, precision: str, limits: DeviceLimits) -> int:
    """About how long a good kernel takes for it in bf16 or tf32."""
    rate = limits.product_rate(precision) * PRODUCT_RATIO
    moved = product.elements * _ITEM_BYTES[precision]
    bandwidth = limits.bandwidth_bytes_per_s * BANDWIDTH_RATIO
    seconds = max(product.flops / rate, moved / bandwidth)
    return max(round(seconds * 1e9), SHORTEST_NS)


def attention_ns(query: Shape, key: Shape, causal: bool, limits: DeviceLimits) -> int:
    """About how long a fused kernel takes in bf16 for one forward."""
    *outer, length, size = query
    batch_heads = 1
    for count in outer:
        batch_heads *= count
    half = 2 if causal and length == key[-2] else 1
    flops = 4 * batch_heads * length * key[-2] * size // half
    key_elements = size
    for count in key[:-1]:
        key_elements *= count
    moved = 2 * (2 * batch_heads * length * size + 2 * key_elements)
    rate = limits.bf16_flops_per_s * ATTENTION_RATIO
    seconds = max(flops / rate, moved / (limits.bandwidth_bytes_per_s * BANDWIDTH_RATIO))
    return max(round(seconds * 1e9), SHORTEST_NS)


def product_basis(limits: DeviceLimits, source: str) -> str:
    """Words for a gain that comes from `product_ns`; `source` tells what the products are."""
    return (
        f"estimate from {source}: products at {PRODUCT_RATIO:.0%} of the tensor cores "
        f"of {limits.name} or {BANDWIDTH_RATIO:.0%} of its bandwidth"
    )


def attention_basis(limits: DeviceLimits) -> str:
    """Words for a gain that comes from `attention_ns`."""
    return (
        f"estimate from the recorded shapes: a fused kernel in bf16 at {ATTENTION_RATIO:.0%} of "
        f"the tensor cores of {limits.name} or {BANDWIDTH_RATIO:.0%} of its bandwidth"
    )

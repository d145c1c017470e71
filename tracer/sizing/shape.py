"""What a model is made of: its weights, and what it keeps for each token of a sequence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

Role = Literal[
    "embedding",  # input tables: only the rows of the tokens are read
    "lm_head",
    "attention",
    "ffn",
    "experts",  # routed experts: a token reads a few of them
    "router",
    "mixer",  # state-space and other sequence mixers
    "norm",
    "encoder",  # runs once a request, not in a decode step
    "tower",  # vision or audio
    "other",
]
CacheKind = Literal["full", "window", "latent", "cross", "state"]


@dataclass(frozen=True)
class Weights:
    """`count` equal tensors. A matrix is rows x columns, a vector has one row."""

    name: str
    role: Role
    rows: int
    columns: int
    count: int = 1
    matrix: bool = True  # a matrix multiplication, which quantization replaces

    @property
    def parameters(self) -> int:
        return self.rows * self.columns * self.count


@dataclass(frozen=True)
class Cache:
    """What `layers` layers keep for a sequence: `token_values` numbers a token, and whatever its
    length `state_values` numbers in the cache's precision and `state_fp32_values` in fp32."""

    kind: CacheKind
    layers: int
    token_values: int = 0
    window: int | None = None
    state_values: int = 0
    state_fp32_values: int = 0
    heads: int = 1  # over how many tensor-parallel ranks it can be split
    transformers_token_values: int | None = None  # where transformers keeps more than it needs
    detail: str = field(default="", compare=False)  # how token_values comes about

    def bytes(self, tokens: int, dtype_bytes: float) -> int:
        """Bytes for a sequence of this length (of the encoder's, in cross-attention)."""
        kept = tokens if self.window is None else min(tokens, self.window)
        return self._bytes(self.token_values * kept, dtype_bytes)

    def transformers_bytes(self, tokens: int, dtype_bytes: float) -> int:
        """The same in the dynamic cache of transformers: of a window it keeps all but the oldest
        token, which the next step no longer sees."""
        kept = tokens if self.window is None else min(tokens, self.window - 1)
        values = self.transformers_token_values or self.token_values
        return self._bytes(values * kept, dtype_bytes)

    def _bytes(self, values: int, dtype_bytes: float) -> int:
        own = (values + self.state_values) * dtype_bytes
        return int(self.layers * (own + 4 * self.state_fp32_values))

    @property
    def growth_values(self) -> int:
        """Numbers that one more token adds while every window has room."""
        return self.layers * self.token_values


@dataclass(frozen=True)
class Routing:
    """A mixture of experts: a token reads `active` of `experts` in each of the routed layers."""

    experts: int
    active: int

    def hit_ratio(self, tokens: int) -> float:
        """The share of the experts that a batch of tokens reads, routed evenly."""
        return 1.0 - (1.0 - self.active / self.experts) ** tokens


@dataclass(frozen=True)
class ModelShape:
    """A model as the arithmetic needs it. `basis` says where the weights were counted."""

    model_type: str
    weights: tuple[Weights, ...]
    caches: tuple[Cache, ...]
    basis: str
    architecture: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    query_width: int = 0  # heads x head size: what attention computes a token
    ffn_width: int = 0  # columns a token passes through, all its experts together
    gated: bool = True
    vocabulary: int | None = None
    longest: int | None = None  # positions the model was made for
    tied: bool = False
    routing: Routing | None = None
    encoder_layers: int = 0
    reduces_a_layer: int = 2  # all-reduces of a tensor-parallel layer
    dtype: str | None = None  # of the published weights
    quantization: str | None = None
    cache_known: bool = True
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        return sum(weights.parameters for weights in self.weights)

    def count(self, *roles: Role) -> int:
        """Parameters of these roles."""
        return sum(part.parameters for part in self.weights if part.role in roles)

    @property
    def gathered_parameters(self) -> int:
        """Input tables of which a step reads single rows; the head reads a tied one whole."""
        tables = [part for part in self.weights if part.role == "embedding"]
        if self.tied and tables:
            tables.remove(max(tables, key=lambda part: part.parameters))
        return sum(part.parameters for part in tables)

    @property
    def active_parameters(self) -> int:
        """What one token passes through: all but the experts it is not routed to."""
        experts = self.count("experts")
        if self.routing is None:
            return self.parameters
        return self.parameters - experts + experts * self.routing.active // self.routing.experts

    def noted(self, *notes: str) -> ModelShape:
        return replace(self, notes=(*self.notes, *notes))


def linear(
    name: str, role: Role, inputs: int, outputs: int, *, bias: bool = False, count: int = 1
) -> list[Weights]:
    """A linear layer, with its bias if it has one."""
    parts = [Weights(name, role, outputs, inputs, count)]
    if bias:
        parts.append(Weights(f"{name}.bias", role, 1, outputs, count, matrix=False))
    return parts


def vector(name: str, role: Role, width: int, count: int = 1) -> list[Weights]:
    return [Weights(name, role, 1, width, count, matrix=False)] if width and count else []


def times(parts: Iterable[Weights], count: int) -> list[Weights]:
    """The same weights in `count` layers."""
    return [replace(part, count=part.count * count) for part in parts] if count else []


def table(name: str, rows: int, columns: int, role: Role = "embedding") -> list[Weights]:
    return [Weights(name, role, rows, columns, matrix=False)]

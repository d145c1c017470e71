"""What the name of an operator on the host tells of the work it launches (DESIGN 5, `operator`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tracer.analyzers.names.name_rules import Rule, first_fit, read_rules
from tracer.analyzers.names.symbols import split_words

_AUTOGRAD = "autograd::engine::evaluate_function: "


# Operators that give another view of a tensor, without `aten::`: on a CPU one that calls another is
# work by itself where it takes longer than that.
VIEWS = frozenset(
    {"view", "_unsafe_view", "view_as", "reshape", "reshape_as", "_reshape_alias", "expand",
     "expand_as", "broadcast_to", "permute", "transpose", "t", "numpy_T", "mT", "mH", "adjoint",
     "movedim", "moveaxis", "swapaxes", "swapdims", "unsqueeze", "squeeze", "slice", "select",
     "narrow", "chunk", "split", "split_with_sizes", "unbind", "flatten", "unflatten", "ravel",
     "unfold", "diagonal", "as_strided", "alias", "detach"}
)  # fmt: skip
# And those that make room for a tensor, read a number of it or convert what is converted already:
# on a device they launch nothing.
COMPUTING_NOTHING = VIEWS | {
    "empty", "empty_like", "empty_strided", "new_empty", "to", "_to_copy", "item", "resize_",
    "_local_scalar_dense", "is_nonzero", "detach_", "lift_fresh", "scalar_tensor", "result_type",
    "contiguous", "type_as", "set_", "unsafe_split", "unsafe_chunk", "view_as_complex",
    "view_as_real", "conj", "resolve_conj", "resolve_neg", "real", "imag", "set_data",
}  # fmt: skip


@dataclass(frozen=True)
class OperatorRole:
    """Group and part of an operator's work. An empty group: that of the block that owns it."""

    group: str
    part: str
    confidence: float


@lru_cache(maxsize=1 << 16)
def operator_role(name: str) -> OperatorRole | None:
    """The role that an operator, autograd node or range of the framework proves by its name.

    None for operators that serve anything, such as `aten::mm`, and for names never seen before.
    """
    text = split_words(name.removeprefix(_AUTOGRAD))
    found = first_fit(_rules(), text)
    if not found or not found["part"]:
        return None
    return OperatorRole(found["group"], found["part"], float(found["confidence"]))


@lru_cache(maxsize=1)
def _rules() -> tuple[Rule, ...]:
    return read_rules("operator_names.csv")

"""The weights of modules: how many, of what type, and how many of them this rank computes with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn


class Weights(NamedTuple):
    """The parameters of a module without its children's: columns of `model_modules`."""

    parameters: int
    parameter_bytes: int
    dtype: str
    device: str
    trainable: int


NO_WEIGHTS = Weights(-1, -1, "", "", -1)
_WITHOUT_WEIGHTS = Weights(0, 0, "", "", 0)


def weights_of(module: nn.Module, *, gathered: bool = False) -> Weights:
    """What this rank computes with. `gathered`: of what is sharded all parts are put together
    before."""
    own = [p for p in module._parameters.values() if p is not None]
    if not own:
        return _WITHOUT_WEIGHTS
    if len(own) > 1:
        own = list({id(p): p for p in own}.values())
    count = size = learns = 0
    for parameter in own:
        parts = _parts(parameter, gathered=gathered)
        count += logical_numel(parameter) // parts
        size += parameter.numel() * parameter.element_size() // parts
        learns |= parameter.requires_grad
    return Weights(count, size, dtype_name(own[0]), _name_of(own[0].device), int(learns))


def _parts(parameter: torch.Tensor, *, gathered: bool) -> int:
    """Over how many ranks the computation with a parameter is divided: those of tensor parallelism.
    Where parameters are gathered, the outermost of the shardings is taken back for it."""
    if type(parameter) is nn.Parameter:
        return 1
    placements: Sequence[Any] = getattr(parameter, "placements", ())  # of a DTensor
    sharded = [place for place, placement in enumerate(placements) if hasattr(placement, "dim")]
    mesh: Any = getattr(parameter, "device_mesh", None)
    return math.prod(mesh.size(place) for place in sharded[int(gathered) :])


def gathers(module: nn.Module) -> bool:
    """Whether a module puts the sharded weights below it together before each call (FSDP2)."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def dtype_name(tensor: torch.Tensor) -> str:
    """The type of a tensor's elements as torch names it, without the module."""
    return _name_of(tensor.dtype)


# Not `functools.cache`: the compiler, where it sees such a function, warns.
_names: dict[torch.dtype | torch.device, str] = {}


def _name_of(value: torch.dtype | torch.device) -> str:
    name = _names.get(value)
    if name is None:
        name = _names[value] = str(value).removeprefix("torch.")
    return name


def logical_numel(parameter: torch.Tensor) -> int:
    """How many weights a parameter stands for: a packed one holds several in an element."""
    # To ask a tensor for what it has not is slow, and hardly any has it.
    if type(parameter) is nn.Parameter and not parameter.__dict__:
        return parameter.numel()
    shape = getattr(getattr(parameter, "quant_state", None), "shape", None)
    return parameter.numel() if shape is None else int(torch.Size(shape).numel())


def parameters_in(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """The parameters that these modules hold themselves, each once."""
    own = (parameter for module in modules for parameter in module._parameters.values())
    return list({id(p): p for p in own if p is not None}.values())

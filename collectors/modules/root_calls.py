"""Calls of root modules: batch, new tokens and cache, read from shapes alone.

No value of a tensor is read, on any device: that would make the host wait for it.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from tracer.collectors.modules.module_tree import ModuleRecord, unwrap
from tracer.collectors.steps.generation import Generation
from tracer.events import SIDE_TABLES, make_table

UNKNOWN = -1

# Words in the names of arguments. A cache keeps what earlier tokens left behind.
_CACHE = re.compile(r"(?:^|_)(?:past|cache|caches|kv|kvs|mems)(?:_|$)|(?:^|_)states?$")
_NO_CACHE = re.compile(r"^use_|^return_|^output_|position|mask|hidden_state|len(?:gth)?s?$")
_POSITION = re.compile(r"(?:^|_)(?:pos|offset|past_len\w*|cache_len\w*|seqlen_offset)$")
_NOT_TOKENS = re.compile(
    r"mask|position|pos$|label|target|_type|cache|past|^kv|weight|lengths?$|offset|encoder_hidden"
    r"|encoder_outputs|memory"
)
# Features: the second dimension is not one of tokens.
_FEATURES = re.compile(r"pixel|image|audio|video|input_features|input_values|waveform|spectrogram")
_DECODER = re.compile(r"^decoder_input|^tgt|^trg")
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8})
_CACHE_BUFFER = re.compile(r"(?:^|\.|_)(?:[kv]_?cache|cache_[kv]|kv)(?:_|\.|$)|_cache$")


class CallFacts(NamedTuple):
    """What the arguments of one call say. -1: unknown."""

    batch: int
    tokens: int
    cached: int
    is_decoder: bool  # the output of an encoder came in


def argument_names(module_type: type[nn.Module]) -> tuple[str, ...]:
    """Names of the positional arguments of a class's `forward`, without `self`."""
    if issubclass(module_type, torch.jit.ScriptModule):
        return ()
    function: Any = module_type.forward
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return () if code is None else tuple(code.co_varnames[1 : code.co_argcount])


def named_arguments(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name; positional ones without a name get their number."""
    given = {names[i] if i < len(names) else f"_{i}": value for i, value in enumerate(args)}
    given.update(kwargs)
    return given


def call_facts(arguments: Mapping[str, Any], seen: SeenCaches, *, keeps_cache: bool) -> CallFacts:
    """What the arguments say. `keeps_cache`: the module itself holds a cache in its buffers."""
    is_decoder = any(
        arguments.get(name) is not None for name in ("encoder_outputs", "encoder_hidden_states")
    )
    batch, tokens = _batch_and_tokens(arguments, is_decoder)
    return CallFacts(batch, tokens, _cached(arguments, seen, keeps_cache), is_decoder)


def _batch_and_tokens(arguments: Mapping[str, Any], is_decoder: bool) -> tuple[int, int]:
    tensors = [
        (name, value)
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor) and not _NOT_TOKENS.search(name)
    ]
    if is_decoder:
        tensors.sort(key=lambda item: not _DECODER.search(item[0]))
    for _, tensor in tensors:
        if tensor.dim() == 2 and tensor.dtype in _INTEGERS:
            return _size(tensor, 0), _size(tensor, 1)
    for name, tensor in tensors:
        if tensor.dim() == 3 and tensor.is_floating_point() and not _FEATURES.search(name):
            return _size(tensor, 0), _size(tensor, 1)
    batches = [_size(tensor, 0) for _, tensor in tensors if tensor.dim() >= 2]
    return (batches[0] if batches else UNKNOWN), UNKNOWN


def _size(tensor: torch.Tensor, dimension: int) -> int:
    """A size that is a plain number: to ask a symbolic one for its value would fix it."""
    size = tensor.shape[dimension]
    return size if type(size) is int else UNKNOWN


class SeenCaches:
    """Caches that an earlier call used: a static one looks the same whether filled or not."""

    def __init__(self) -> None:
        self._anchors: dict[int, weakref.ref[Any]] = {}

    def add(self, cache: Any) -> None:
        """The call with this cache has ended: it is filled now."""
        anchor = _anchor(cache)
        key = id(anchor)
        try:
            self._anchors[key] = weakref.ref(anchor, lambda _: self._forget(key))
        except TypeError:  # plain containers and numbers have no weak reference
            return

    def _forget(self, key: int) -> None:
        self._anchors.pop(key, None)

    def __contains__(self, cache: Any) -> bool:
        anchor = _anchor(cache)
        reference = self._anchors.get(id(anchor))
        return reference is not None and reference() is anchor


def _anchor(cache: Any) -> Any:
    """What stands for a cache: its first tensor when it is a plain container."""
    return next(_tensors(cache), cache) if isinstance(cache, (list, tuple, dict)) else cache


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def cache_arguments(arguments: Mapping[str, Any]) -> list[Any]:
    """The arguments that carry a cache, given or None."""
    return [
        value
        for name, value in arguments.items()
        if _CACHE.search(name) and not _NO_CACHE.search(name) and not isinstance(value, bool)
    ]


def _cached(arguments: Mapping[str, Any], seen: SeenCaches, keeps_cache: bool) -> int:
    states = [cache_state(cache, seen) for cache in cache_arguments(arguments)]
    states += [int(position > 0) for position in _positions(arguments)]
    if 1 in states:
        return 1
    return UNKNOWN if UNKNOWN in states or (keeps_cache and not states) else 0


def _positions(arguments: Mapping[str, Any]) -> Iterator[int]:
    for name, value in arguments.items():
        if type(value) is int and _POSITION.search(name):
            yield value


def cache_state(cache: Any, seen: SeenCaches) -> int:
    """1: filled, 0: empty, -1: it cannot be told from shapes."""
    if cache is None:
        return 0
    if isinstance(cache, (list, tuple, dict)):
        return _container_state(cache, seen)
    if isinstance(cache, torch.Tensor):
        return 0 if cache.numel() == 0 else int(cache in seen) or UNKNOWN
    inner = getattr(cache, "self_attention_cache", cache)
    state = _layers_state(inner)
    return int(cache in seen) or UNKNOWN if state == UNKNOWN else state


def _container_state(cache: Any, seen: SeenCaches) -> int:
    first = next(_tensors(cache), None)
    if first is None or first.numel() == 0:
        # A list of objects, one for each layer, or a container that holds nothing yet.
        items = list(cache.values()) if isinstance(cache, dict) else list(cache)
        items = [item for item in items if not isinstance(item, (list, tuple, dict))]
        states = [cache_state(item, seen) for item in items if item is not None][:1]
        return states[0] if states and first is None else 0
    # Only a model's own output comes as a tuple; other containers may be buffers made beforehand.
    return 1 if isinstance(cache, tuple) or cache in seen else UNKNOWN


def _layers_state(cache: Any) -> int:
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, list):
        return UNKNOWN
    if not layers:
        return 0
    return max(map(_layer_state, layers[:8]), key=(0, UNKNOWN, 1).index)


def _layer_state(layer: Any) -> int:
    if not getattr(layer, "is_initialized", True):
        return 0
    keys = getattr(layer, "keys", None)
    if not isinstance(keys, torch.Tensor) or getattr(layer, "is_compileable", False):
        return UNKNOWN
    return int(keys.dim() >= 2 and keys.shape[-2] > 0)


def keeps_cache(root: nn.Module) -> bool:
    """Whether a model holds its cache in buffers of its own."""
    return any(_CACHE_BUFFER.search(name) for name, _ in root.named_buffers())


def recorded_autograd(output: Any) -> int:
    """1 when autograd recorded the call, by its first floating tensor; -1 without one."""
    values = output.values() if isinstance(output, dict) else output
    if isinstance(output, torch.Tensor):
        values = (output,)
    if not isinstance(values, (list, tuple)) and not isinstance(output, dict):
        values = vars(output).values() if hasattr(output, "__dict__") else ()
    for value in values:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return int(value.requires_grad)
    return UNKNOWN


class OpenCall(NamedTuple):
    """A root call that has not returned."""

    root: ModuleRecord
    facts: CallFacts
    caches: list[Any]
    generation: Generation
    start_ns: int


class RootCalls:
    """The `root_calls` table while it grows: a dozen integers a call, in one array."""

    WIDTH = 11

    def __init__(self) -> None:
        self._rows = array("q")
        self._roots: dict[ModuleRecord, int] = {}
        self._calls: dict[str, int] = {}
        self._seen = SeenCaches()
        self._names: dict[type[nn.Module], tuple[str, ...]] = {}
        self._keeps: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._rows) // self.WIDTH

    def begin(
        self,
        module: nn.Module,
        root: ModuleRecord,
        generation: Generation,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> OpenCall:
        """A root call begins."""
        inner = unwrap(module)
        names = self._names.get(type(inner))
        if names is None:
            names = self._names[type(inner)] = argument_names(type(inner))
        arguments = named_arguments(names, args, kwargs)
        facts = call_facts(arguments, self._seen, keeps_cache=self._keeps_cache(inner))
        return OpenCall(root, facts, cache_arguments(arguments), generation, time.time_ns())

    def end(self, call: OpenCall, output: Any) -> int:
        """It returned, or raised: then `output` is None. Returns the time."""
        end_ns = time.time_ns()
        for cache in (*call.caches, *(output if isinstance(output, (list, tuple)) else ())):
            if cache is not None and not isinstance(cache, torch.Tensor):
                self._seen.add(cache)
        facts = call.facts
        # One call of C code: another thread cannot come between the numbers of a row.
        self._rows.extend(
            (
                call.start_ns,
                end_ns,
                threading.get_native_id(),
                facts.batch,
                facts.tokens,
                facts.cached,
                recorded_autograd(output),
                call.generation.number,
                facts.is_decoder,
                self._roots.setdefault(call.root, len(self._roots)),
                self._calls.setdefault(call.generation.call, len(self._calls)),
            )
        )
        return end_ns

    def _keeps_cache(self, module: nn.Module) -> bool:
        known = self._keeps.get(module)
        if known is None:
            known = self._keeps[module] = keeps_cache(module)
        return known

    def ended_since(self, first: int) -> NDArray[np.int64]:
        """Calls from the `first` on, while the trace runs: start_ns, end_ns, batch, tokens,
        cached and graded of each."""
        # A copy: the array cannot grow while somebody looks at its memory.
        rows = np.array(self._rows[first * self.WIDTH :], dtype=np.int64).reshape(-1, self.WIDTH)
        return rows[:, [0, 1, 3, 4, 5, 6]]

    def table(self) -> pd.DataFrame:
        """The table, in order of start; may be asked while the trace runs. Roots have the path
        that they were last known by."""
        grown = np.array(self._rows[:], dtype=np.int64).reshape(-1, self.WIDTH)
        rows = grown[np.argsort(grown[:, 0], kind="stable")]
        roots = list(self._roots)
        columns = ("start_ns", "end_ns", "thread", "batch", "tokens", "cached", "graded")
        return make_table(
            SIDE_TABLES["root_calls"],
            {
                **{name: rows[:, i] for i, name in enumerate(columns)},
                "root": [roots[i].path for i in rows[:, 9]],
                "type": [roots[i].type for i in rows[:, 9]],
                "call": [list(self._calls)[i] for i in rows[:, 10]],
                "generation": rows[:, 7],
                "part": [_part(roots[row[9]].path, bool(row[8])) for row in rows],
            },
        )


def _part(path: str, is_decoder: bool) -> str:
    if is_decoder:
        return "decoder"
    return "encoder" if path.rpartition(".")[2] == "encoder" else ""

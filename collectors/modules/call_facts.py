"""What the arguments of a call say of it: batch, new tokens and cache, read from shapes alone.

No value of a tensor is read, on any device: that would make the host wait for it. What a name says
is asked once for all calls that give the same arguments: this runs while the program waits.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import nn

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
_ENCODED = frozenset({"encoder_outputs", "encoder_hidden_states"})
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8})
_CACHE_BUFFER = re.compile(r"(?:^|\.|_)(?:[kv]_?cache|cache_[kv]|kv)(?:_|\.|$)|_cache$")


class CallFacts(NamedTuple):
    """What the arguments of one call say. -1: unknown."""

    batch: int
    tokens: int
    cached: int
    is_decoder: bool  # the output of an encoder came in
    past: int  # tokens in the cache

    @property
    def work(self) -> tuple[int, int, int, bool]:
        """How much there is to do: a cache grows with each call, and is the same work."""
        return self[:4]


def argument_names(module_type: type[nn.Module]) -> tuple[str, ...]:
    """Names of the positional arguments of a class's `forward`, without `self`."""
    if issubclass(module_type, torch.jit.ScriptModule):
        return ()
    function: Any = module_type.forward
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return () if code is None else tuple(code.co_varnames[1 : code.co_argcount])


class Roles(NamedTuple):
    """What the arguments of a call may be, by their numbers."""

    tokens: tuple[int, ...]
    decoded: tuple[int, ...]  # the same, a decoder's own first
    features: frozenset[int]
    encoded: tuple[int, ...]  # what an encoder said
    caches: tuple[int, ...]
    positions: tuple[int, ...]
    plain: tuple[int, ...]  # all but caches, of what says anything


def roles_of(names: Sequence[str]) -> Roles:
    """What arguments of these names may be."""
    tokens = _numbers(names, lambda name: not _NOT_TOKENS.search(name))
    encoded = _numbers(names, _ENCODED.__contains__)
    positions = _numbers(names, _POSITION.search)
    return Roles(
        tokens,
        tuple(sorted(tokens, key=lambda i: not _DECODER.search(names[i]))),
        frozenset(_numbers(names, _FEATURES.search)),
        encoded,
        _numbers(names, _names_cache),
        positions,
        (*tokens, *encoded, *positions),
    )


@lru_cache(maxsize=1024)
def _names_cache(name: str) -> bool:
    return _CACHE.search(name) is not None and not _NO_CACHE.search(name)


def _numbers(names: Sequence[str], is_one: Callable[[str], Any]) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(names) if is_one(name))


def given_names(
    names: Sequence[str], args: Sequence[Any], kwargs: Iterable[str]
) -> tuple[str, ...]:
    """The names of the arguments of a call; positional ones without a name get their number."""
    return (*(names[i] if i < len(names) else f"_{i}" for i in range(len(args))), *kwargs)


class PlainFacts(NamedTuple):
    """What the arguments but for caches say."""

    batch: int
    tokens: int
    is_decoder: bool
    positions: tuple[int, ...]  # of the first new token


def plain_facts(roles: Roles, values: Sequence[Any]) -> PlainFacts:
    """What the arguments say; of caches nothing is asked."""
    is_decoder = any(values[i] is not None for i in roles.encoded)
    batch, tokens = _batch_and_tokens(roles, values, is_decoder)
    positions = tuple(values[i] for i in roles.positions if type(values[i]) is int)
    return PlainFacts(batch, tokens, is_decoder, positions)


def call_facts(
    plain: PlainFacts, caches: Sequence[Any], seen: SeenCaches, *, keeps_cache: bool
) -> CallFacts:
    """What the arguments of a call say, with these caches among them. `keeps_cache`: the module
    itself holds one in its buffers."""
    batch, tokens, is_decoder, positions = plain
    if len(caches) == 1 and not positions:
        cached, past = seen.told_by(caches[0])
    else:
        cached, past = _told_by_all(caches, positions, seen, keeps_cache)
    return CallFacts(batch, tokens, cached, is_decoder, 0 if cached == 0 else past)


def _told_by_all(
    caches: Sequence[Any], positions: Sequence[int], seen: SeenCaches, keeps_cache: bool
) -> tuple[int, int]:
    """Whether tokens came before, and how many: by a position, or by caches."""
    told = [seen.told_by(cache) for cache in caches]
    states = [*(state for state, _ in told), *(int(position > 0) for position in positions)]
    past = positions[0] if positions else max((n for _, n in told), default=UNKNOWN)
    if 1 in states:
        return 1, past
    return UNKNOWN if UNKNOWN in states or (keeps_cache and not states) else 0, past


def _batch_and_tokens(roles: Roles, values: Sequence[Any], is_decoder: bool) -> tuple[int, int]:
    order = roles.decoded if is_decoder else roles.tokens
    tensors = [(i, value) for i in order if isinstance(value := values[i], torch.Tensor)]
    for _, tensor in tensors:
        if tensor.dim() == 2 and tensor.dtype in _INTEGERS:
            return _size(tensor, 0), _size(tensor, 1)
    for i, tensor in tensors:
        if tensor.dim() == 3 and tensor.is_floating_point() and i not in roles.features:
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
        self._mute: set[int] = set()  # those of them that will never tell anything themselves

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
        self._mute.discard(key)

    def told_by(self, cache: Any) -> tuple[int, int]:
        """1: it is filled, 0: empty, -1: it cannot be told; and how many tokens it holds, or -1.
        Asked while the program waits, of mostly the same cache."""
        if id(cache) in self._mute and cache in self:
            return 1, UNKNOWN
        if cache is None:
            return 0, UNKNOWN
        tokens = cached_tokens(cache)
        if isinstance(cache, (torch.Tensor, list, tuple, dict)):
            return cache_state(cache, self), tokens
        if tokens > 0:
            return 1, tokens
        state = cache_state(cache, self)
        if state == 1 and tokens == UNKNOWN and cache in self:  # its buffers stay as they are
            self._mute.add(id(cache))
        return state, tokens

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


def caches_among(roles: Roles, values: Sequence[Any]) -> list[Any]:
    """The arguments that carry a cache, given or None."""
    return [value for i in roles.caches if not isinstance(value := values[i], bool)]


def cached_tokens(cache: Any) -> int:
    """How many tokens a cache holds, by its shapes or a number of its own; -1: they do not tell. A
    static one is as long as it will ever be, and keeps its number in a tensor."""
    if isinstance(cache, (list, tuple, dict)):
        first = next(_tensors(cache), None)
        return _size(first, -2) if first is not None and first.dim() >= 3 else UNKNOWN
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", None)
    if not isinstance(layers, list):
        return UNKNOWN
    return next((n for layer in layers[:8] if (n := _layer_tokens(layer)) >= 0), UNKNOWN)


def _layer_tokens(layer: Any) -> int:
    counted = getattr(layer, "cumulative_length", None)
    if type(counted) is int:  # of a window, which keeps its last tokens alone
        return counted
    keys = getattr(layer, "keys", None)
    if not isinstance(keys, torch.Tensor) or getattr(layer, "is_compileable", False):
        return UNKNOWN
    return _size(keys, -2) if keys.dim() >= 3 else UNKNOWN


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


def can_decode(root: nn.Module) -> bool:
    """False for a model that says itself that it generates nothing: one that gives a score, say,
    may return the cache of the layers below, which nobody asked for."""
    said: Any = getattr(root, "can_generate", None)
    return not callable(said) or said() is not False


def returns_cache(output: Any) -> bool:
    """Whether the output of a model holds a cache."""
    if isinstance(output, torch.Tensor):
        return False
    if isinstance(output, (list, tuple)):
        return any(_is_cache(value) for value in output)
    named = output if isinstance(output, dict) else getattr(output, "__dict__", {})
    return any(value is not None and _names_cache(str(name)) for name, value in named.items())


def _is_cache(value: Any) -> bool:
    """A container of tensors, or an object that knows how long it is."""
    return isinstance(value, (list, tuple)) or hasattr(value, "get_seq_length")

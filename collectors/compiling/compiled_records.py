"""What is known of a compiled graph, put together: the modules that each of its calls serves.

Four things can tell them, the surest first: the nodes of the lowered graph, the compiler's own map
back to the nodes before lowering, the names of those nodes in the comments of the generated source,
and the parameters that the call reads. The last two also serve code that was compiled before
anybody watched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from tracer.collectors.compiling.compiled_source import EXTERN, NO_SOURCE, SourceCall, SourceModule

PROVENANCE, SOURCE_NODES, PARAMETERS = "provenance", "source nodes", "parameters"
_BASES = ("", PARAMETERS, SOURCE_NODES, PROVENANCE)  # the surest last

# Nodes that only describe memory, change a type or make an index: what reads them computes.
_NEUTRAL = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "flatten", "contiguous", "as_strided", "alias"),
        *("permute", "t", "transpose", "expand", "unsqueeze", "squeeze", "detach", "getitem"),
        *("slice", "select", "split", "chunk", "unbind", "convert_element_type", "_to_copy", "to"),
        *("empty", "empty_strided", "full", "iota", "arange", "scalar_tensor", "prims"),
    )
)
_NUMBER = re.compile(r"_\d+$")
_SUM = re.compile(r"_c10d_functional\.(?:all_reduce|reduce_scatter|wait_tensor)")
_IN_LAYER = re.compile(r"(?:^|\.)\d+\.\w")


@dataclass(frozen=True)
class Home:
    """A module as the compiler names it: `id`, its source text, its class."""

    key: int
    text: str
    type: str


Stack = tuple[Home, ...]  # outermost first


@dataclass(frozen=True)
class Source:
    """A module that a call computes for."""

    path: str
    type: str
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class CallRecord:
    """A call of a compiled graph with its modules."""

    kernel: str
    form: str
    operators: tuple[str, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class GraphRecord:
    """A compiled graph, understood. root: path and class of the module whose frame was compiled."""

    key: str
    compile_id: str
    backward: bool
    file: str
    basis: str
    root: tuple[str, str]
    calls: tuple[CallRecord, ...]
    modules: tuple[tuple[str, str], ...]  # around the sources, for the tree


@dataclass
class Frame:
    """What Dynamo captured of one frame: where each node comes from."""

    nodes: dict[str, Stack]
    root: Home | None


@dataclass
class Seen:
    """A compiled graph that was made or called while somebody watched."""

    graph: Any
    source: SourceModule = NO_SOURCE
    compile_id: str = ""
    backward: bool = False
    lowered: dict[str, tuple[Stack, str]] = field(default_factory=dict)
    kernels: dict[str, list[str]] = field(default_factory=dict)
    inputs: list[list[tuple[str, str]]] = field(default_factory=list)  # owners of each, in order
    owners: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # the same by name


class ModuleNames:
    """What the recorder calls a module: paths by `id`, and the owners of parameters."""

    def __init__(
        self,
        path_of: Callable[[int], tuple[str, str] | None],
        owners: Callable[[], Mapping[int, list[tuple[str, str]]]],
    ) -> None:
        self.path_of, self._owners = path_of, owners

    def owners_of(self, tensors: Iterable[Any]) -> list[list[tuple[str, str]]]:
        """For each of these tensors the modules that hold it as parameter or buffer."""
        owners = self._owners()
        return [owners.get(address_of(tensor), []) for tensor in tensors]


def address_of(tensor: Any) -> int:
    """Where a tensor lies; 0 for what has no memory of its own."""
    try:
        return int(tensor.data_ptr())
    except (AttributeError, RuntimeError, ValueError):  # a number, a tensor without memory
        return 0


def understand(names: ModuleNames, frame: Frame, seen: Seen) -> GraphRecord:
    """The record of one graph."""
    graph = seen.graph
    reader = _Understanding(names, frame, seen)
    calls = [reader.call(call) for call in seen.source.calls]
    calls = _between(with_sums(with_gradients(calls) if seen.backward else calls))
    return GraphRecord(
        str(getattr(graph, "_fx_graph_cache_key", None)),
        seen.compile_id,
        seen.backward,
        str(getattr(graph, "cache_key", "")),
        reader.basis,
        reader.root,
        tuple(calls),
        tuple(reader.around),
    )


def better(record: GraphRecord, known: GraphRecord | None) -> GraphRecord:
    if known is None or _BASES.index(record.basis) >= _BASES.index(known.basis):
        return record
    return known


def stack_of(node: Any) -> Stack:
    """The modules around a node, of the backward pass those of its forward."""
    found = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return tuple(_home(key, value) for key, value in found.items())


def _home(key: Any, value: Any) -> Home:
    text, owner = value if isinstance(value, tuple) and len(value) == 2 else (str(value), "")
    name = getattr(owner, "__name__", str(owner).rpartition(".")[2])
    return Home(int(key) if str(key).isdigit() else 0, str(text), name)


def operator_of(node: Any) -> str:
    """The ATen operator of a lowered node; "" for its inputs and outputs."""
    if node.op not in ("call_function", "call_method"):
        return ""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return str(schema.name)  # a node of the framework's own operators
    return f"aten::{getattr(node.target, '__name__', node.target)}"


class _Understanding:
    """Finds the modules of the calls of one graph."""

    def __init__(self, names: ModuleNames, frame: Frame, seen: Seen) -> None:
        self._names, self._frame, self._seen = names, frame, seen
        self.basis = ""
        self.around: dict[tuple[str, str], None] = {}
        root = frame.root
        self.root = ("", "") if root is None else (self._path(root), root.type)
        mapping = _mapping(seen.graph)
        self._lowered = seen.kernels or mapping.get("cppCodeToPost") or {}
        self._before = mapping.get("postToPre") or {}

    def call(self, call: SourceCall) -> CallRecord:
        """The call with its modules, by the best evidence there is."""
        nodes = self._lowered.get(f"{call.kernel}:{call.handle}") or []
        basis, sources = PROVENANCE, self._from_lowered(call, nodes)
        if not sources:
            basis, sources = SOURCE_NODES, self._from_source(call)
        if not sources:
            basis, sources = PARAMETERS, self._from_inputs(call)
        if sources:
            self.basis = max(self.basis, basis, key=_BASES.index)
        return CallRecord(call.kernel, call.form, _operators(call, nodes), tuple(sources))

    def _from_lowered(self, call: SourceCall, nodes: Iterable[str]) -> list[Source]:
        """Modules of lowered nodes: their own, or those of the nodes that they were made from. Of
        an operator from outside only the node that it computes: others made its inputs."""
        called = [node for node in nodes if _word(node) == called_operator(call.kernel)]
        found: list[tuple[Stack, str]] = []
        for node in called if call.form == EXTERN and called else nodes:
            stack, operator = self._seen.lowered.get(node, ((), _word(node)))
            before = [self._frame.nodes.get(name, ()) for name in self._before.get(node, ())]
            stacks = [stack] if stack else [one for one in before if one] or self._own_code
            found += [(one, operator or _word(node)) for one in stacks]
        return self._sources(found)

    @property
    def _own_code(self) -> list[Stack]:
        """What stands in no module inside the compiled frame is the frame's own code."""
        return [] if self._frame.root is None else [(self._frame.root,)]

    def _from_source(self, call: SourceCall) -> list[Source]:
        """Modules of the nodes in the comment above the call. Of an operator from outside only the
        last is its own: the others made its inputs."""
        nodes = [name for name in call.nodes if name in self._frame.nodes]
        if call.form == EXTERN:
            nodes = nodes[-1:]
        own = self._own_code
        stacks = [[s] if (s := self._frame.nodes[name]) else own for name in nodes]
        return self._sources([(stack, "") for several in stacks for stack in several])

    def _from_inputs(self, call: SourceCall) -> list[Source]:
        owners = self._seen.owners
        found = [owner for name in call.inputs for owner in _owner(call, owners.get(name, []))]
        return [Source(path, kind) for path, kind in dict.fromkeys(found)]

    def _sources(self, found: list[tuple[Stack, str]]) -> list[Source]:
        """One source for each innermost module, with the operators that it has in the call."""
        telling = [(s, o) for s, o in found if _word(o.rpartition("::")[2]) not in _NEUTRAL]
        operators: dict[tuple[str, str], dict[str, None]] = {}
        for stack, operator in telling or found:
            for home in stack:
                self.around[self._path(home), home.type] = None
            place = self._path(stack[-1]), stack[-1].type
            operators.setdefault(place, {}).update({operator: None} if operator else {})
        return [Source(path, kind, tuple(used)) for (path, kind), used in operators.items()]

    def _path(self, home: Home) -> str:
        known = self._names.path_of(home.key) if home.key else None
        if known is not None:
            return known[0]
        root = self._frame.root
        text = home.text
        if root is not None and text.startswith(root.text):
            above = self._names.path_of(root.key)
            rest = _dotted(text[len(root.text) :])
            return ".".join(part for part in (above[0] if above else "", rest) if part)
        return _dotted(re.sub(r"^[LG]\['\w+'\](\[\d+\])?", "", text))


def _dotted(text: str) -> str:
    """`.model.layers[0]` or `._modules['model']` as `model.layers.0`, `model`."""
    words = re.findall(r"\w+", text.replace("_modules", " "))
    return ".".join(words)


def _word(name: str) -> str:
    """The operator in the name of a node: mul for mul_3."""
    return _NUMBER.sub("", name)


def called_operator(kernel: str) -> str:
    """`mm` for `extern_kernels.mm` and `torch.ops.aten.mm.default`."""
    words = kernel.split(".")
    return words[3] if kernel.startswith("torch.ops.") and len(words) > 3 else words[-1]


def _operators(call: SourceCall, nodes: Iterable[str]) -> tuple[str, ...]:
    told = [_word(node) for node in nodes] or [
        name.removeprefix("aten.") for name in call.operators
    ]
    return tuple(dict.fromkeys(told))


def _owner(call: SourceCall, owners: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of several modules that share a tensor the one that the call can compute for."""
    if len(owners) < 2:
        return owners
    embeds = "embedding" in call.kernel
    fitting = [owner for owner in owners if ("Embedding" in owner[1]) == embeds]
    return (fitting or owners)[:1]


def _mapping(graph: Any) -> Mapping[str, Any]:
    text = getattr(graph, "inductor_provenance_mapping_str", None)
    try:
        mapping = json.loads(text) if text else {}
    except ValueError:
        return {}
    return mapping if isinstance(mapping, dict) else {}


def with_gradients(calls: list[CallRecord]) -> list[CallRecord]:
    """In a backward pass the products for the gradients of a weight and of its input stand side by
    side, in either order: one that tells nothing serves the module of the other."""
    out: list[CallRecord] = []
    for kernel, group in groupby(calls, key=lambda call: (call.form, call.kernel)):
        alike = list(group)
        paired = EXTERN in kernel and len(alike) > 1
        out += [_told_by_pair(alike, place) for place in range(len(alike))] if paired else alike
    return out


def _told_by_pair(alike: list[CallRecord], place: int) -> CallRecord:
    """The call at this place, with the sources of the other of its pair where it has none below the
    root; where some stand alone, with those of the one before it, else after it."""
    others = [place - 1, place + 1] if len(alike) % 2 else [place ^ 1, place - 1, place + 1]
    near = [alike[other].sources for other in (place, *others) if 0 <= other < len(alike)]
    inner = (sources for sources in near if any(source.path for source in sources))
    return replace(alike[place], sources=next(inner, alike[place].sources))


def with_sums(calls: list[CallRecord]) -> list[CallRecord]:
    """A sum over ranks, and the wait for it, serve the module whose product they sum: it is made by
    the call before."""
    out: list[CallRecord] = []
    for call in calls:
        told = () if call.sources or not out or not _SUM.search(call.kernel) else out[-1].sources
        out.append(replace(call, sources=(Source(told[0].path, told[0].type),)) if told else call)
    return out


def _between(calls: list[CallRecord]) -> list[CallRecord]:
    """Calls that read no parameter lie in the block of a layer whose parameters are read on both
    sides of them."""
    paths = [_layer_path(call) for call in calls]
    out = []
    for place, call in enumerate(calls):
        before = next((p for p in reversed(paths[:place]) if p), "")
        after = next((p for p in paths[place + 1 :] if p), "")
        shared = _shared_block(before, after)
        if call.sources or not shared:
            out.append(call)
        else:
            out.append(replace(call, sources=(Source(shared, ""),)))
    return out


def _layer_path(call: CallRecord) -> str:
    return next((s.path for s in call.sources if _IN_LAYER.search(s.path)), "")


def _shared_block(before: str, after: str) -> str:
    """The innermost module around both, when it lies inside a layer."""
    words = []
    for one, other in zip(before.split("."), after.split("."), strict=False):
        if one != other:
            break
        words.append(one)
    path = ".".join(words)
    return path if _IN_LAYER.search(path) else ""

"""Graphs of the compiler, seen while they are made, loaded and called."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from tracer.collectors.compiling.compiled_records import (
    Frame,
    GraphRecord,
    Home,
    ModuleNames,
    Seen,
    better,
    operator_of,
    stack_of,
    understand,
)
from tracer.collectors.compiling.compiled_source import read_source


class CompiledGraphs:
    """Collects compiled graphs between `watch…` and `close`. `on_new` is called with each graph
    before it runs for the first time; `own_range` makes a range around what the program then waits
    for."""

    def __init__(
        self,
        names: ModuleNames,
        on_new: Callable[[Any], None],
        own_range: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._names, self._on_new, self._own_range = names, on_new, own_range
        self._frames: dict[str, Frame] = {}
        self._seen: dict[int, Seen] = {}  # by `id`, which they keep because they are held here
        self._used: set[int] = set()
        self.failure: Exception | None = None
        self._undo: list[Callable[[], None]] = []

    # Hooks

    def watch_dynamo(self, module: ModuleType) -> None:
        """Keep the module stack of each node that Dynamo hands to a compiler."""
        owner = getattr(module, "OutputGraph", None)
        original = getattr(owner, "call_user_compiler", None)
        if owner is None or original is None:
            return

        @functools.wraps(original)
        def call_user_compiler(output: Any, gm: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._guard(self._captured, output, gm)
            return original(output, gm, *args, **kwargs)

        self._patch(owner, "call_user_compiler", call_user_compiler)

    def watch_inductor(self, module: ModuleType) -> None:
        """See graphs when they are made, loaded and called."""
        owner = getattr(module, "CompiledFxGraph", None)
        if owner is None:
            return
        methods = {name: vars(owner).get(name) for name in ("__init__", "post_compile", "__call__")}
        if None not in methods.values():
            self._patch(owner, "__init__", self._after(methods["__init__"], self._made))
            self._patch(owner, "post_compile", self._before(methods["post_compile"], self._loaded))
            self._patch(owner, "__call__", self._at_first_call(methods["__call__"]))

    def _after(self, original: Any, note: Callable[..., None]) -> Any:
        @functools.wraps(original)
        def call(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(graph, *args, **kwargs)
            self._guard(note, graph, *args, **kwargs)
            return result

        return call

    def _before(self, original: Any, note: Callable[..., None]) -> Any:
        @functools.wraps(original)
        def call(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._guard(note, graph, *args, **kwargs)
            return original(graph, *args, **kwargs)

        return call

    def _at_first_call(self, original: Any) -> Any:
        used = self._used

        @functools.wraps(original)
        def call(graph: Any, inputs: Any) -> Any:
            if id(graph) not in used:
                used.add(id(graph))
                self._guard(self._called, graph, inputs)
            return original(graph, inputs)

        return call

    def _patch(self, owner: type, name: str, value: Any) -> None:
        before = vars(owner)[name]
        setattr(owner, name, value)

        def restore() -> None:
            if vars(owner).get(name) is value:
                setattr(owner, name, before)

        self._undo.append(restore)

    def _guard(self, note: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        try:
            note(*args, **kwargs)
        except Exception as error:  # the border to the compiler: it must not notice
            self.failure = self.failure or error

    def close(self) -> None:
        """Take every patch away."""
        while self._undo:
            self._undo.pop()()

    # What the hooks see

    def _captured(self, output: Any, gm: Any) -> None:
        nodes = {node.name: stack_of(node) for node in gm.graph.nodes}
        self._frames[_compile_id()] = Frame(nodes, _root_of(output))

    def _record(self, graph: Any) -> Seen:
        return self._seen.setdefault(id(graph), Seen(graph))

    def _made(self, graph: Any, *args: Any, **kwargs: Any) -> None:
        gm = kwargs.get("gm", args[2] if len(args) > 2 else None)
        seen = self._record(graph)
        seen.compile_id = _compile_id()
        seen.kernels = _kernels_now()
        if gm is not None:
            seen.lowered = {n.name: (stack_of(n), operator_of(n)) for n in gm.graph.nodes}

    def _loaded(self, graph: Any, *args: Any, **kwargs: Any) -> None:
        seen = self._record(graph)
        seen.compile_id = seen.compile_id or _compile_id()
        options = kwargs.get("graph_kwargs", args[2] if len(args) > 2 else {})
        seen.backward = bool(options.get("is_backward", False))

    def _called(self, graph: Any, inputs: Any) -> None:
        with self._own_range():
            self._on_new(graph)
            # Their memory may be another's later; the source is read when the program has ended.
            self._record(graph).inputs = self._names.owners_of(inputs)

    # What is made of it

    def records(self, known: Mapping[str, GraphRecord]) -> list[GraphRecord]:
        """Every graph that was called. `known`: what an earlier trace understood, by key."""
        nothing = Frame({}, None)
        for key in self._used & self._seen.keys():
            _read(self._seen[key])
        made = [
            understand(self._names, self._frames.get(seen.compile_id) or nothing, seen)
            for key, seen in self._seen.items()
            if key in self._used
        ]
        return [better(record, known.get(record.key)) for record in made]


def _read(seen: Seen) -> None:
    seen.source = read_source(str(getattr(seen.graph, "source_code", "") or ""))
    seen.owners = dict(zip(seen.source.inputs, seen.inputs, strict=False))


def _kernels_now() -> dict[str, list[str]]:
    """The compiler's own map of the graph that it has just finished: kernel -> lowered nodes. What
    it keeps with the graph lacks it for a backward pass."""
    debug = sys.modules.get("torch._inductor.debug")
    kernels = getattr(debug, "_inductor_triton_kernel_to_post_grad_node_info", None)
    return {name: list(nodes) for name, nodes in kernels.items()} if kernels else {}


def _compile_id() -> str:
    from torch._guards import CompileContext

    return str(CompileContext.current_compile_id() or "")


def _root_of(output: Any) -> Home | None:
    """The module whose frame is compiled: its first argument, that of a wrapper, or, where it goes
    on after a graph break, the first module among its variables."""
    frame = getattr(output, "root_tx", None)
    local = getattr(frame, "f_locals", None) or {}
    first = getattr(getattr(frame, "f_code", None), "co_varnames", ())[:1]
    found = [(f"L['{name}']", local.get(name)) for name in (*first, "self", *local)]
    arguments = local.get("args")
    if isinstance(arguments, tuple) and arguments:
        found.append(("L['args'][0]", arguments[0]))
    for text, value in found:
        if hasattr(value, "_parameters") and hasattr(value, "_modules"):
            return Home(id(value), text, type(value).__name__)
    return None

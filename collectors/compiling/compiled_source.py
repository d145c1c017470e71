"""What a module that Inductor wrote calls, read from its source: kernels in order of launch, the
nodes of the graph that each came from, and the graph's inputs that it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

GENERATED, EXTERN = "generated", "extern"

_DEFINED = re.compile(r"^(\w+) = (?:async_compile\.\w+|\w*[Kk]ernel\w*)\(", re.M)
_FUNCTION = re.compile(r"^(\s*)def (\w+)\(")
_EXTERN = re.compile(
    r"\b((?:extern_kernels|inductor_ops|aten|_quantized|torch\.ops\.\w+)\.[\w.]+)\("
)
_PARTITION = re.compile(r"\bself\.partitions\[(\d+)\]\(|\bpartition_(\d+)\(")
_HANDLE = re.compile(r"# \[Provenance debug handles\] (.+):(\d+)\s*$")
_NODES = re.compile(
    r"# Topologically Sorted Source Nodes: \[([^\]]*)\](?:, Original ATen: \[([^\]]*)\])?"
)
_INPUTS = re.compile(r"^\s*([\w, ]+?),? = args\s*$")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")


@dataclass(frozen=True)
class SourceCall:
    """One call of the generated module. handle: its number among the compiler's own, 0 unknown;
    nodes: names of nodes before lowering, where comments tell; inputs: names of graph inputs."""

    kernel: str
    form: str
    handle: int
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class SourceModule:
    """The calls of a generated module in order, and the names of its inputs."""

    calls: tuple[SourceCall, ...]
    inputs: tuple[str, ...]
    kernels: frozenset[str]


NO_SOURCE = SourceModule((), (), frozenset())


def read_source(text: str) -> SourceModule:
    """Read a module that Inductor wrote; without calls where its form is not known."""
    kernels = frozenset(_DEFINED.findall(text))
    bodies = _bodies(text)
    lines = bodies.get("call", [])
    inputs = next((_names(m[1]) for line in lines if (m := _INPUTS.match(line))), ())
    reader = _Reader(kernels, frozenset(inputs), bodies)
    return SourceModule(tuple(reader.calls(lines)), inputs, kernels)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _bodies(text: str) -> dict[str, list[str]]:
    """Lines of each function outside string literals; the last of one name counts."""
    bodies: dict[str, list[str]] = {}
    current: list[str] = []
    indent, literal = 0, False
    for line in text.splitlines():
        inside, literal = literal, literal ^ bool(line.count("'''") % 2)
        if inside or literal:
            continue
        match = _FUNCTION.match(line)
        if match:
            indent, current = len(match[1]), bodies.setdefault(match[2], [])
            current.clear()
        elif line.strip() and len(line) - len(line.lstrip()) <= indent:
            current = []
        else:
            current.append(line)
    return bodies


@dataclass(frozen=True)
class _Reader:
    kernels: frozenset[str]
    inputs: frozenset[str]
    bodies: dict[str, list[str]]

    def calls(self, lines: list[str]) -> Iterator[SourceCall]:
        """Calls of a function's lines; those of a partition stand where it is called."""
        handle = 0
        nodes: tuple[str, ...] = ()
        operators: tuple[str, ...] = ()
        for line in lines:
            text = line.strip()
            if text.startswith("#"):
                handle = int(m[2]) if (m := _HANDLE.match(text)) else handle
                if m := _NODES.match(text):
                    nodes, operators = _names(m[1]), _names(m[2] or "")
                continue
            if m := _PARTITION.search(text):
                yield from self.calls(self.bodies.get(f"partition_{m[1] or m[2]}", []))
                continue
            called = self._called(text)
            if called is not None:
                yield SourceCall(*called, handle, nodes, operators, self._inputs(text))
                handle, nodes, operators = 0, (), ()

    def _called(self, text: str) -> tuple[str, str] | None:
        if text.startswith(("assert_", "del ", "return ", "import ", "from ", "if ", "with ")):
            return None
        for match in _WORD.finditer(text):
            if match[0] in self.kernels and re.match(r"(\.\w+)?\(", text[match.end() :]):
                return match[0], GENERATED
        extern = _EXTERN.search(text)
        return None if extern is None else (extern[1], EXTERN)

    def _inputs(self, text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(w for w in _WORD.findall(text) if w in self.inputs))

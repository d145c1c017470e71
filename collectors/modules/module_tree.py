"""Names of the modules of a model: qualified names, which of them get a range, their parameters."""

from __future__ import annotations

import inspect
import itertools
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn

from tracer.collectors.modules.weights import (
    NO_WEIGHTS,
    Weights,
    gathers,
    weights_of,
)
from tracer.events import SIDE_TABLES, make_table

RANGE_PREFIX = "module::"
# What is written while the program runs, before a number. Up to fifteen characters cost the
# profiler no allocation: that is a sixth of the cost of a range.
_NUMBER_PREFIX = "module::#"
# In place of a range: of a module that may be a root, and of one deep inside a model that is none.
NO_RANGE, INNER = "none", "inner"

# Wrappers that hold one model: their name is no part of the model's own names.
_WRAPPER_CHILDREN = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_MODULE_WRAPPERS = ("DataParallel", "DistributedDataParallel", "DeepSpeedEngine")
# What is trained beside frozen weights.
_ADAPTER = re.compile(r"(^|\.)(lora_\w+|adapters?|ia3_\w+)(\.|$)")
_REPEATERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def range_name(path: str, module_type: str) -> str:
    """The name of a module's range."""
    return f"{RANGE_PREFIX}{path}::{module_type}"


def children_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children whose calls pass through Python: a scripted module has none."""
    # Most modules are leaves: they are told first, the model's first call waits for all of this.
    if not module._modules or isinstance(module, torch.jit.ScriptModule):
        return []
    return [(name, child) for name, child in module._modules.items() if child is not None]


def unwrap(module: nn.Module) -> nn.Module:
    """The model inside wrappers of compilation, data parallelism and checkpointing."""
    inner = _wrapped(module)
    while inner is not None:
        module, inner = inner, _wrapped(inner)
    return module


def innermost(module: nn.Module) -> nn.Module:
    """The model that a module is around, whoever wrote it: an evaluation may call that one. What is
    around has no weights of its own, and one child with any."""
    module = unwrap(module)
    while not module._parameters:
        weighty = [
            child for _, child in children_of(module) if next(child.parameters(), None) is not None
        ]
        # The building blocks of torch are what models are made of.
        if len(weighty) != 1 or type(weighty[0]).__module__.startswith("torch.nn."):
            break
        module = unwrap(weighty[0])
    return module


def _wrapped(module: nn.Module) -> nn.Module | None:
    if not module._modules:
        return None
    children = children_of(module)
    if len(children) != 1:
        return None
    name, child = children[0]
    is_wrapper = name in _WRAPPER_CHILDREN or (
        name == "module" and any(c.__name__ in _MODULE_WRAPPERS for c in type(module).__mro__)
    )
    return child if is_wrapper else None


def type_name(module: nn.Module) -> str:
    """The class of a module; of a scripted one the class it was made from."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(module.original_name)
    return type(module).__name__


class Member(NamedTuple):
    """A module at its place in a root. `depth` counts from the outermost repeated layer."""

    path: str
    module: nn.Module
    depth: int  # -1 outside repeated layers
    is_wrapper: bool = False
    has_children: bool = False
    beside_blocks: bool = False  # a sibling has children


def walk(root: nn.Module) -> Iterator[Member]:
    """Every module of a root once, parents first, wrappers named like what they hold."""
    seen: set[int] = set()
    stack = [Member("", root, -1, has_children=True)]
    while stack:
        member = stack.pop()
        if id(member.module) in seen:
            continue
        seen.add(id(member.module))
        inner = _wrapped(member.module)
        if inner is None:
            yield member
            stack.extend(reversed(_children(member)))
        else:
            yield member._replace(is_wrapper=True)
            blocks = bool(children_of(inner))
            stack.append(member._replace(module=inner, has_children=blocks))


def _children(member: Member) -> list[Member]:
    children = children_of(member.module)
    if not children:
        return []
    has_children = [bool(children_of(child)) for _, child in children]
    inner = sum(has_children)
    depth = member.depth + 1
    if member.depth < 0 and not isinstance(member.module, _REPEATERS):
        depth = -1
    return [
        Member(
            f"{member.path}.{name}" if member.path else name,
            child,
            depth,
            has_children=blocks,
            beside_blocks=inner > blocks,
        )
        for (name, child), blocks in zip(children, has_children, strict=True)
    ]


def is_block(member: Member) -> bool:
    """Whether a module says something that its parent's range and the operators do not.

    Inside a block of a repeated layer (depth 2 and more) the plain linear layers and the modules
    without parameters say nothing more: there are three of them for every other module.
    """
    module = member.module
    if member.has_children or member.depth < 2 or member.beside_blocks:
        return True
    if not module._parameters:
        return False
    return not _is_linear(module) or _ADAPTER.search(member.path) is not None


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or any(
        word in type(module).__name__ for word in ("Linear", "Conv1D")
    )


@dataclass(eq=False)  # a module may compare as it likes
class _Root:
    label: str  # the first part of its names; "" for none
    module: weakref.ref[nn.Module]
    called: weakref.ref[nn.Module]  # the wrapper around it that was called, or itself
    type: str
    described: Any = None
    rescans: int = 0


@dataclass(eq=False)
class ModuleRecord:
    """What is known of a module. Its path changes when a larger root is seen."""

    path: str
    type: str
    order: int = 0
    weights: Weights = NO_WEIGHTS  # as they were at its first call
    file: str = ""  # of its class's `forward`
    line: int = -1


class OwnRange(list[Any]):
    """The range of a module: the name that is written, and as items, for the module's next call,
    those of this name that are closed."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class KnownRanges(dict[int, OwnRange | str | None]):
    """Ranges by `id` of the module: `NO_RANGE` or `INNER` for one without, None for one not known.

    A subscript calls no method that a profiler with Python frames would see.
    """

    def __missing__(self, key: int) -> None:
        return None


class WrittenNames:
    """The names that are written for modules, and what these are called in the end: a module may
    be called before the larger model that holds it."""

    def __init__(self) -> None:
        self._records: dict[str, ModuleRecord] = {}

    def new(self, record: ModuleRecord) -> str:
        """A name for a module of which this will be known."""
        name = f"{_NUMBER_PREFIX}{len(self._records)}"
        self._records[name] = record
        return name

    def keep(self, name: str, record: ModuleRecord) -> None:
        """The same name still stands for it."""
        self._records[name] = record

    def final(self) -> dict[str, str]:
        """Each name written, and the range name that it stands for."""
        return {name: range_name(known.path, known.type) for name, known in self._records.items()}


class _Reference(weakref.ref[nn.Module]):
    """A module held weakly, and its `id`. Unlike `weakref.KeyedRef` no call of Python makes it."""

    __slots__ = ("key",)
    key: int


class ModuleTree:
    """The modules of all roots seen: range names by `id`, held weakly.

    The first root has no prefix; a later one that contains it takes its place; any other is named
    after its class.
    """

    # A model that makes new modules in each call is not searched again and again.
    MAX_RESCANS = 8

    def __init__(
        self,
        *,
        every_module: bool = False,
        names_later: bool = False,
        describe: Callable[[nn.Module], Any] = lambda module: None,
    ) -> None:
        self.ranges = KnownRanges()
        self.written = WrittenNames()
        self._every_module = every_module
        self._names_later = names_later  # no range is written: a name can wait until the end
        self._describe = describe  # a root, at its first call and again at the end
        self._unnamed: list[tuple[weakref.ref[nn.Module], Any]] = []
        self._known: dict[int, ModuleRecord] = {}
        self._freed: list[ModuleRecord] = []
        self._alive: dict[int, weakref.ref[nn.Module]] = {}
        self._roots: list[_Root] = []
        # A program may make a new model in each step: none of the others is looked at then.
        self._newest: dict[int, _Root] = {}  # by `id` of its module, which may be another's by now
        self._types: Counter[str] = Counter()  # of roots
        self._freed_roots: list[Any] = []  # what was said of roots that never got a name
        self._places: dict[type[nn.Module], tuple[str, int]] = {}
        self._order = itertools.count()
        self._lock = threading.RLock()
        self.freed = 0  # modules whose `id` may be another's by now

    def renew_lock(self) -> None:
        """A forked child has not the thread that may have held it."""
        self._lock = threading.RLock()

    @property
    def roots(self) -> list[nn.Module]:
        """The roots that still live, in their wrappers, in order of their first call."""
        modules = [_first_alive(root.called, root.module) for root in self._roots]
        return [module for module in modules if module is not None]

    def descriptions(self) -> list[Any]:
        """What `describe` says of every root; of one that has been freed, what it said at first."""
        said = list(self._freed_roots)
        for root in self._roots:
            module = _first_alive(root.called, root.module)
            said.append(root.described if module is None else self._describe(module))
        return said

    def add(self, module: nn.Module) -> None:
        """Name the modules of a root."""
        if self._names_later:
            self._note(module)
            return
        with self._lock:
            members = list(walk(module))
            inner = unwrap(module)
            ids = {id(member.module) for member in members} - {id(inner)}
            contained = self._roots_among(ids)
            root = self._find(inner)
            if root is None:
                label = self._label(inner, contained)
                references = weakref.ref(inner), weakref.ref(module)
                root = _Root(label, *references, type_name(inner), self._describe(module))
                self._roots.append(root)
                self._newest[id(inner)] = root
                self._types[root.type] += 1
            self._name(members, root.label, contained)
            for known in contained:
                self._roots.remove(known)
                self._newest = {key: one for key, one in self._newest.items() if one is not known}
                self._types[known.type] -= 1

    def _note(self, module: nn.Module) -> None:
        """Know a root without looking inside."""
        inner = unwrap(module)
        self.ranges[id(module)] = NO_RANGE
        self._unnamed.append((weakref.ref(module), self._describe(module)))
        for known in (module, inner):
            self._watch(known)
        self._known.setdefault(id(inner), ModuleRecord("", type_name(inner)))

    def settle(self) -> None:
        """Name what has waited for it."""
        if not self._names_later:
            return
        self._names_later = False
        self.ranges.clear()
        for reference, described in self._unnamed:
            module = reference()
            if module is None:
                self._freed_roots.append(described)
            else:
                self.add(module)
        self._unnamed.clear()

    def rescan(self, module: nn.Module) -> None:
        """Name modules that a known root got after its first call."""
        with self._lock:
            root = self._find(unwrap(module))
            if root is not None and root.rescans < self.MAX_RESCANS:
                root.rescans += 1
                self._name(list(walk(module)), root.label, [])

    def record_of(self, module: nn.Module) -> ModuleRecord:
        """What is known of a module, or of the one inside a wrapper."""
        inner = unwrap(module)
        return self._known.get(id(inner)) or ModuleRecord("", type_name(inner))

    def record_by_id(self, key: int) -> ModuleRecord | None:
        """What is known of the module with this `id`, while it lives."""
        return self._known.get(key)

    def called_names(self) -> set[str]:
        """Range names of the modules that have a `forward` to call, as they are known now."""
        final = self.written.final()
        known = ((self.ranges.get(key), ref()) for key, ref in list(self._alive.items()))
        return {
            final[own.name]
            for own, module in known
            if isinstance(own, OwnRange) and own.name in final and _is_callable(module)
        }

    def table(self) -> pd.DataFrame:
        """The `model_modules` of every root; of what has been freed, as it was at first."""
        gathering = self._gathering()
        for key, record in list(self._known.items()):
            module = self._alive[key]()
            if module is not None:
                inside = any(_is_within(record.path, path) for path in gathering)
                record.weights = weights_of(module, gathered=inside)
        records = sorted((*self._known.values(), *self._freed), key=lambda record: record.order)
        rows = [(r.path, r.type, *r.weights, r.file, r.line) for r in records]
        columns = SIDE_TABLES["model_modules"]
        values = zip(*rows, strict=True) if rows else ([] for _ in columns)
        return make_table(columns, dict(zip(columns, map(list, values), strict=True)))

    def _gathering(self) -> list[str]:
        """Paths of modules that gather the weights below them."""
        known = ((record.path, self._alive[key]()) for key, record in list(self._known.items()))
        return [path for path, module in known if module is not None and gathers(module)]

    def _find(self, module: nn.Module) -> _Root | None:
        root = self._newest.get(id(module))
        return root if root is not None and root.module() is module else None

    def _roots_among(self, ids: set[int]) -> list[_Root]:
        """Known roots that have one of these as `id`, the first known first."""
        known = [(key, self._newest[key]) for key in ids & self._newest.keys()]
        found = [root for key, root in known if id(root.module()) == key]
        return sorted(found, key=self._roots.index)

    def _label(self, module: nn.Module, contained: list[_Root]) -> str:
        if contained:
            return contained[0].label
        if not self._roots:
            return ""
        name = type_name(module)
        same = self._types[name]
        return f"{name}_{same + 1}" if same else name

    def _name(self, members: list[Member], label: str, contained: list[_Root]) -> None:
        inner_roots = [module for root in contained if (module := root.module()) is not None]
        replaced = {id(member.module) for root in inner_roots for member in walk(root)}
        for member in members:
            key = id(member.module)
            if key in self.ranges and key not in replaced:
                continue
            path = f"{label}.{member.path}" if label and member.path else label or member.path
            self._add(member, path)

    def _add(self, member: Member, path: str) -> None:
        module = member.module
        key = id(module)
        # The compiler runs what it compiled in place of the module inside its wrapper.
        called = not member.is_wrapper or (bool(member.path) and "_orig_mod" in module._modules)
        has_range = called and (self._every_module or is_block(member))
        if member.is_wrapper:
            record = ModuleRecord(path, type_name(unwrap(module)))
        else:
            record = self._record(module, path)
        self._watch(module)
        if has_range:
            self.ranges[key] = self._own_range(self.ranges[key], record)
        else:
            self.ranges[key] = NO_RANGE if member.is_wrapper else INNER

    def _record(self, module: nn.Module, path: str) -> ModuleRecord:
        record = self._known.get(id(module))
        if record is None:
            record = self._known[id(module)] = ModuleRecord(path, type_name(module))
            record.file, record.line = self._place(type(module))
        record.path, record.order, record.weights = path, next(self._order), weights_of(module)
        return record

    def _place(self, kind: type[nn.Module]) -> tuple[str, int]:
        place = self._places.get(kind)
        if place is None:
            place = self._places[kind] = _forward_place(kind)
        return place

    def _own_range(self, before: OwnRange | str | None, record: ModuleRecord) -> OwnRange:
        if isinstance(before, OwnRange):
            self.written.keep(before.name, record)
            return before
        return OwnRange(self.written.new(record))

    def _watch(self, module: nn.Module) -> None:
        """Forget it when it is freed: its `id` is given again to a later object."""
        reference = _Reference(module, self._forget)
        reference.key = key = id(module)
        self._alive[key] = reference

    def _forget(self, reference: _Reference) -> None:
        key = reference.key
        self.freed += 1
        self.ranges.pop(key, None)
        self._alive.pop(key, None)
        known = self._known.pop(key, None)
        if known is not None:
            self._freed.append(known)


def _is_within(path: str, around: str) -> bool:
    """Whether a module is another one or lies in it, by their paths."""
    return not around or path == around or path.startswith(f"{around}.")


def _first_alive(*references: weakref.ref[nn.Module]) -> nn.Module | None:
    # A module may have a length, and then the empty one counts as false.
    modules = (reference() for reference in references)
    return next((module for module in modules if module is not None), None)


def _is_callable(module: nn.Module | None) -> bool:
    if module is None or isinstance(module, torch.jit.ScriptModule):
        return module is not None
    return type(module).forward is not nn.Module.forward


def _forward_place(kind: type[nn.Module]) -> tuple[str, int]:
    """File and line of the `forward` of a class; of a decorated one, of what was decorated. Plain
    containers and compiled ones have none."""
    if issubclass(kind, torch.jit.ScriptModule) or kind.forward is nn.Module.forward:
        return "", -1
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    return ("", -1) if code is None else (code.co_filename, code.co_firstlineno)


def modules_of(root: nn.Module) -> list[nn.Module]:
    """A module and all below it, each once, what is above first."""
    seen, found = {id(root)}, [root]
    for module in found:  # which grows meanwhile
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                found.append(child)
    return found

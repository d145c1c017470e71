"""Ranges around module calls and the calls of roots, from one patch of `nn.Module.__call__`.

The patch lives as long as the trace. Compiled code does not see it: the first thing it asks is
whether a compiler traces it, and that is a constant to the compiler, so no guard depends on us.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from tracer.collectors import torch_private
from tracer.collectors.modules import (
    call_facts,
    calling_threads,
    looks,
    module_tree,
    root_calls,
    weights,
)
from tracer.collectors.modules.calling_threads import CallingThreads
from tracer.collectors.modules.looks import Kind, Look, Looks
from tracer.collectors.modules.module_tree import (
    INNER,
    KnownRanges,
    ModuleTree,
    OwnRange,
    unwrap,
)
from tracer.collectors.modules.root_calls import OpenCall, Root, RootCalls
from tracer.collectors.steps import generation
from tracer.collectors.steps.generation import Generations
from tracer.collectors.untyped_torch import cuda_is_initialized

Call = Callable[..., Any]

# The compiler takes this for a constant; elsewhere it is the cheapest question of its kind.
_is_compiling = torch.compiler.is_dynamo_compiling

# Ranges of this prefix are read as the recording's own cost.
OWN_RANGE = "tracer::names of modules"


class RootListener(Protocol):
    """Who wants to know when a call of a root begins and ends."""

    @property
    def steps_announced(self) -> bool:
        """Whether the program says itself where its steps are."""
        ...

    def root_begins(self) -> None: ...

    def root_rests(self) -> None:
        """The call that began is like earlier ones in all that its arguments tell, and need not be
        looked at; no other thread could call anything meanwhile."""
        ...

    def root_ends(self, now_ns: int) -> None: ...


class _Local(threading.local):
    inside = False  # a call of a root is open on this thread
    unnamed = False  # and something in it has no name yet


_local = _Local()
_alone = False  # such a call is open, and no thread but its own could call a module
_current: ModuleRanges | None = None
# Of the trace that lives; None while a call rests.
_known: KnownRanges | Look | None = None
_hear: Callable[[int], None] | None = None  # while a call rests: told of each module called
_in_frames = False  # Python frames are recorded with the ranges
_new_range: Callable[[str], Any] = torch_private.range_functions
_original: Call = nn.Module.__call__
_is_plain = False  # torch's own `__call__` only chooses: then the choice is made here, a call less
_buried = False  # somebody patched over our patch: it stays, and passes calls on


# The name `self` matters: a profiler with Python frames takes whatever stands at
# `nn.Module.__call__` for a module call, reads the local `self` of its frame, and crashes without.
def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`nn.Module.__call__` while a trace lives."""
    if _is_compiling():
        return _original(self, *args, **kwargs)
    known = _known
    if known is not None:
        own = known[id(self)]
    else:
        own, hear = INNER, _hear
        if hear is not None:
            hear(id(self))
    inner: Any
    if own is INNER:  # most calls: what the thread is doing is not even asked
        if not _is_plain:
            return _original(self, *args, **kwargs)
        inner = self._compiled_call_impl
        if inner is None:
            inner = self._call_impl
        # Without an empty dictionary to be copied a call is quicker.
        return inner(*args, **kwargs) if kwargs else inner(*args)
    if own is None or not _alone:
        if not _local.inside:
            trace = _current
            if trace is None:
                return _original(self, *args, **kwargs)
            return trace.outermost(_original, self, args, kwargs)
        if own is None:
            _local.unnamed = True
    if type(own) is not OwnRange:
        return _original(self, *args, **kwargs)
    if _is_plain:
        inner = self._compiled_call_impl
        if inner is None:
            inner = self._call_impl
    else:
        inner = functools.partial(_original, self)
    # A range is taken while it is open: a module may call itself, or be called by two threads.
    try:
        closed = own.pop()
    except IndexError:
        closed = _new_range(own.name)
    if _in_frames:
        with closed:
            output = inner(*args, **kwargs)
        own += (closed,)  # of this no frame is written, unlike of a method
        return output
    enter, leave = closed
    enter()
    try:
        output = inner(*args, **kwargs) if kwargs else inner(*args)
    finally:
        leave()
    own.append(closed)
    return output


functools.update_wrapper(_call, _original)


def _inherited_call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
    """What a class without a `__call__` of its own does at the time of the call."""
    base = nn.Module.__call__
    # Ours has come back during this very call, whose range is open already.
    return (_original if base is _call else base)(module, *args, **kwargs)


def _root_call_of(original: Call) -> Call:
    """`__call__` of a root's class: only its outermost calls count."""

    @functools.wraps(original)
    def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(module, *args, **kwargs)
        trace = _current
        if trace is None or _local.inside:
            return original(module, *args, **kwargs)
        return trace.outermost(original, module, args, kwargs)

    return call


def _compiled_call_of(original: Call) -> Call:
    """`get_compiled_call` of transformers: what it returns goes round `nn.Module.__call__`."""

    @functools.wraps(original)
    def get_compiled_call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        compiled = original(module, *args, **kwargs)

        def forward(*args: Any, **kwargs: Any) -> Any:
            trace = _current
            if trace is None or _local.inside:
                return compiled(*args, **kwargs)
            return trace.outermost(lambda _, *a, **k: compiled(*a, **k), module, args, kwargs)

        return forward

    return get_compiled_call


class ClassPatches:
    """Attributes set on classes, and taken back where nobody has replaced them since."""

    def __init__(self) -> None:
        self._set: list[tuple[type, str, Any, Any]] = []

    def set(self, owner: type, name: str, value: Any) -> None:
        self._set.append((owner, name, vars(owner).get(name), value))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._set:
            owner, name, before, value = self._set.pop()
            if vars(owner).get(name) is not value:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


@functools.cache
def _keep_compiler_out() -> None:
    torch_private.keep_compiler_out(
        sys.modules[__name__],
        call_facts,
        calling_threads,
        generation,
        looks,
        module_tree,
        root_calls,
        torch_private,
        weights,
    )


def _install(trace: ModuleRanges) -> None:
    global _current, _original, _is_plain, _in_frames, _new_range
    current = nn.Module.__call__
    if current is not _call and (current is _original or not _buried):
        _original = current
        _is_plain = torch_private.is_plain_module_call(current)
        nn.Module.__call__ = _call  # type: ignore[method-assign]
    _in_frames = trace.in_frames
    _new_range = trace.make_range if _in_frames else torch_private.range_functions
    _current = trace
    _see(trace.known)


def _forget() -> None:
    global _current, _known, _hear
    _current = _known = _hear = None


def _see(known: KnownRanges | Look | None, hear: Callable[[int], None] | None = None) -> None:
    global _known, _hear
    _known, _hear = known, hear


def _in_child() -> None:
    if _current is not None:
        _current.renew_locks()
    _forget()


# A forked child is not traced: the patches are there, and pass calls on.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _uninstall_base() -> None:
    """Leave `nn.Module` as it was found."""
    global _buried
    _buried = nn.Module.__call__ is not _call
    if not _buried:
        nn.Module.__call__ = _original  # type: ignore[method-assign]


class _Looked(NamedTuple):
    """The open call of a root, while no other thread could call anything: the modules called in it,
    and the look at it; None while it rests."""

    call: OpenCall
    kind: Kind
    heard: list[int]
    look: Look | None


class ModuleRanges:
    """Names modules at their first call, writes their ranges, and lists the calls of roots.

    While no ranges are written only roots are listed. Then, once a root was called twice, the
    patch moves from every module to the classes of the roots seen, and all other modules cost
    nothing; it moves back when ranges are to be written. Where ranges are yet to come and the
    program announces its steps, calls tell nothing meanwhile: then no class is patched.
    """

    CALLS_BEFORE_NARROWING = 2

    def __init__(
        self,
        listener: RootListener,
        on_failure: Callable[[str, Exception], None],
        *,
        ranges: bool = True,
        every_module: bool = False,
        in_frames: bool = False,
        describe: Callable[[nn.Module], Any] = lambda module: None,
    ) -> None:
        self.tree = ModuleTree(every_module=every_module, names_later=not ranges, describe=describe)
        self.calls = RootCalls()
        self.looks = Looks()
        self.known = KnownRanges()
        self.make_range = torch_private.range_maker()
        self.in_frames = in_frames
        self._listener = listener
        self._on_failure = on_failure
        self._ranges = ranges
        self._writes = False
        self._threads = CallingThreads()
        self._looked: _Looked | None = None
        self._generations = Generations()
        self._patches = ClassPatches()
        self._root_patches = ClassPatches()
        self._graph_task = torch_private.graph_task_reader()
        self._root_types: set[type[nn.Module]] = set()
        self._counts: dict[int, int] = {}
        self._narrow = False
        self._lock = threading.RLock()  # a finalizer of the program may run in it

    def start(self) -> None:
        """Patch the class."""
        _keep_compiler_out()
        self._generations.watch_loaded()
        self._watch_compiled_calls()
        _install(self)

    def record_ranges(self, on: bool) -> None:
        """Write ranges from now on, or no longer: a schedule waits."""
        self._writes = on and self._ranges
        self.known = self.tree.ranges if self._writes else KnownRanges()
        with self._lock:
            if _current is self:
                _see(self.known)
        if self._writes:
            self._widen()

    def renew_locks(self) -> None:
        """A forked child has none of the threads that may have held them."""
        self._lock = threading.RLock()
        self.tree.renew_lock()

    def close(self) -> None:
        """Take every patch away."""
        with self._lock:
            _forget()
            if not self._narrow:
                _uninstall_base()
            self._root_patches.restore()
            self._patches.restore()
        self._generations.close()
        self.tree.settle()

    def outermost(
        self, original: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A module is called while no other module's call is open on this thread."""
        # An export calls modules without computing anything.
        if torch.compiler.is_compiling():
            return original(module, *args, **kwargs)
        global _alone
        _local.inside = True
        output = call = None
        try:
            _alone = self._writes and self._threads.alone()  # asked for ranges alone
            call = self._begin(module, args, kwargs, sys._getframe(2))
            own = self.known[id(module)]
            if isinstance(own, OwnRange):
                output = self._in_range(own, original, module, args, kwargs)
            else:
                output = original(module, *args, **kwargs)
            return output
        finally:
            _local.inside = _alone = False
            self._end(call, module, output)

    def _in_range(
        self,
        own: OwnRange,
        original: Call,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The call in its range, which is used again as those of all modules are."""
        if self.in_frames:
            with self.make_range(own.name):
                return original(module, *args, **kwargs)
        try:
            closed = own.pop()
        except IndexError:
            closed = _new_range(own.name)
        enter, leave = closed
        enter()
        try:
            return original(module, *args, **kwargs)
        finally:
            leave()
            own.append(closed)

    def _begin(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], caller: Any
    ) -> OpenCall | None:
        try:
            if self._graph_task() != -1:  # a checkpoint computes it again
                return None
            root = self.calls.known.get(id(module))
            if root is None or root.module() is not module:
                root = self._learn(module)
            if root is None or _capturing():
                return None
            self._listener.root_begins()
            within = self._generations.current(caller)
            call = self.calls.begin(module, root, within, caller, args, kwargs)
            if _alone and not self.in_frames:
                self._look_or_rest(call)
            return call
        except Exception as error:  # the border to the traced program
            self._on_failure("a call of a module", error)
            return None

    def _learn(self, module: nn.Module) -> Root | None:
        """The root that this is, if it is one. The program waits for what is done at its first
        call: it is the recording's cost."""
        if id(module) not in self.tree.ranges:
            with self.make_range(OWN_RANGE) if self._writes else contextlib.nullcontext():
                self.tree.add(module)
                self._generations.watch(type(unwrap(module)))
        if not _can_be_a_model(module):
            return None
        return self.calls.learn(module, self.tree.record_of(module))

    def _look_or_rest(self, call: OpenCall) -> None:
        facts = call.facts
        if facts.batch < 0 or call.root.is_routed:  # how much there is to do is not known
            return
        key = call.root.number, call.thread, call.trains, facts.work
        kind = self.looks.kinds.get(key) or self.looks.new(key)
        if kind is None:
            return
        heard: list[int] = []
        look = None if kind.begins() else Look(self.known, heard)
        if look is None and facts.tokens >= 0:
            self._listener.root_rests()
        self._looked = _Looked(call, kind, heard, look)
        if look is None:
            self._see_in_call(None, heard.append)
        else:
            self._see_in_call(look)

    def _see_in_call(
        self, known: KnownRanges | Look | None, hear: Callable[[int], None] | None = None
    ) -> None:
        global _known, _hear
        with self._lock:
            if _current is self:
                _known, _hear = known, hear

    def _end(self, call: OpenCall | None, module: nn.Module, output: Any) -> None:
        try:
            looked = self._looked
            # Without a call something went wrong when it began.
            if looked is not None and (call is None or looked.call is call):
                self._looked = None
                self._see_in_call(self.known)
            else:
                looked = None
            unnamed, _local.unnamed = _local.unnamed, False
            if unnamed and self.known:
                self.tree.rescan(module)
            if call is None:
                return
            end_ns = self.calls.end(call, output)
            if looked is not None:
                self._ended(looked, (call.start_ns, end_ns, call.thread), unnamed=unnamed)
            self._listener.root_ends(end_ns)
            if not (self._writes or self._narrow):
                self._count(module)
        except Exception as error:  # the border to the traced program
            self._on_failure("a call of a module", error)

    def _ended(self, looked: _Looked, times: tuple[int, ...], *, unnamed: bool) -> None:
        kind, look = looked.kind, looked.look
        if look is None:
            self.looks.rested(kind, looked.heard, times, self.tree.freed)
        elif unnamed:
            self.looks.overlooked(kind)
        else:
            self.looks.looked(kind, looked.heard, times, self.tree.freed, look)
        if kind.never_rests:  # perhaps another thread calls modules meanwhile
            self._threads.distrust_pools()

    def _count(self, module: nn.Module) -> None:
        self._root_types |= {type(module), type(module_tree.innermost(module))}
        self._counts[id(module)] = self._counts.get(id(module), 0) + 1
        if self._counts[id(module)] >= self.CALLS_BEFORE_NARROWING:
            self._narrow_to_roots()

    def _narrow_to_roots(self) -> None:
        with self._lock:
            if self._narrow or _current is not self:
                return
            if not (self._ranges and self._listener.steps_announced):
                self._patch_roots()
            _uninstall_base()
            self._narrow = True

    def _patch_roots(self) -> None:
        for owner in self._root_types:
            own = owner.__call__
            original = _inherited_call if own is _call else own
            self._root_patches.set(owner, "__call__", _root_call_of(original))

    def _widen(self) -> None:
        """Every module's call is seen again."""
        with self._lock:
            if not self._narrow or _current is not self:
                return
            self._root_patches.restore()
            _install(self)
            self._narrow = False

    def _watch_compiled_calls(self) -> None:
        module = sys.modules.get("transformers.modeling_utils")
        owner = getattr(module, "PreTrainedModel", None)
        original = vars(owner).get("get_compiled_call") if isinstance(owner, type) else None
        if isinstance(owner, type) and callable(original):
            self._patches.set(owner, "get_compiled_call", _compiled_call_of(original))


def _can_be_a_model(module: nn.Module) -> bool:
    """A loss or an activation by itself is none: it holds nothing."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    if module._modules:
        return True
    own = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None for tensor in own)


def _capturing() -> bool:
    """Whether the call only records a CUDA graph."""
    if not cuda_is_initialized():
        return False
    return torch.cuda.is_current_stream_capturing()

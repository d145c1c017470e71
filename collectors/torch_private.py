"""Interfaces of torch that may vanish: each is tested here, and only here has its fallback."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import torch
import torch.autograd.profiler as autograd_profiler
import torch.profiler
from torch._C import _autograd

# The profiler's entry points, as the module that every Python caller goes through names them.
PROFILER_ENTRIES: tuple[str, ...] = ("_prepare_profiler", "_enable_profiler")

RangeMaker = Callable[[str], AbstractContextManager[Any]]


class Interface(NamedTuple):
    """A private interface: whether this torch has it, and what is done without it."""

    name: str
    found: bool
    fallback: str


def private_interfaces() -> list[Interface]:
    """Every private interface in use, for `tracer doctor`."""
    return [*_of_the_profiler(), *_of_calls(), *_of_groups()]


def _of_the_profiler() -> list[Interface]:
    return [
        Interface(
            "torch._C._profiler._RecordFunctionFast",
            _fast_range() is not None,
            "torch.profiler.record_function (ten times the cost of a module range)",
        ),
        Interface(
            "torch._C._profiler._ExperimentalConfig(profile_all_threads=...)",
            records_all_threads(),
            "only the thread that starts the trace is recorded",
        ),
        Interface(
            "torch._C._profiler._ExperimentalConfig(trace_only=...)",
            _config(trace_only=True) is not None,
            "the end of a recording takes about a third longer",
        ),
        Interface(
            "torch._C._profiler._ExperimentalConfig(disable_external_correlation=...)",
            _config(disable_external_correlation=True) is not None,
            "each operator costs the host about a tenth more while it is recorded on a GPU",
        ),
        Interface(
            "torch._C._autograd._profiler_enabled",
            hasattr(_autograd, "_profiler_enabled"),
            "only profilers started from Python are noticed",
        ),
        Interface(
            "torch.autograd.profiler._is_profiler_enabled",
            hasattr(autograd_profiler, "_is_profiler_enabled"),
            "a profiler of another thread is not noticed",
        ),
        Interface(
            "torch.autograd.profiler._prepare_profiler, _enable_profiler",
            all(hasattr(autograd_profiler, name) for name in PROFILER_ENTRIES),
            "a profiler that starts inside the trace ends it without its data",
        ),
        Interface(
            "torch.profiler activity filters",
            has_activity_filters(),
            "detail 'kernels' records every activity of the device",
        ),
    ]


def _of_calls() -> list[Interface]:
    return [
        Interface(
            "torch._C._current_graph_task_id",
            hasattr(torch._C, "_current_graph_task_id"),
            "recomputed modules of a checkpoint count as calls of a root",
        ),
        Interface(
            "torch.nn.Module._wrapped_call_impl",
            is_plain_module_call(getattr(torch.nn.Module, "_wrapped_call_impl", print)),
            "a call of a module under the hook takes one Python call more",
        ),
        Interface(
            "torch._C._dynamo.eval_frame.set_code_exec_strategy",
            _code_skipper() is not None,
            "torch.compile may compile the hook itself where it would have compiled nothing",
        ),
        Interface(
            "torch._C._dynamo.eval_frame.set_eval_frame",
            _eval_frame_functions() is not None,
            "calls of attention are not noted once something was compiled",
        ),
        Interface(
            "torch.jit._builtins._get_builtin_table",
            _builtin_table() is not None,
            "calls of attention are not noted: refused kernels are told from shapes alone",
        ),
        Interface(
            "torch.backends.cuda.can_use_flash_attention and its like",
            bool(attention_questions()),
            "why fused attention was refused is told from its arguments alone",
        ),
    ]


def _of_groups() -> list[Interface]:
    groups = _groups_module()
    return [
        Interface(
            "torch.distributed.distributed_c10d._get_all_pg_configs",
            groups is None or hasattr(groups, "_get_all_pg_configs"),
            "process groups made inside the trace have no names",
        ),
        Interface(
            "torch.distributed.distributed_c10d._update_default_pg",
            groups is None or hasattr(groups, "_update_default_pg"),
            "process groups made and destroyed inside the trace have no names",
        ),
    ]


def _groups_module() -> Any:
    """The module of process groups; None where this torch was built without it."""
    if not torch.distributed.is_available():
        return None
    from torch.distributed import distributed_c10d

    return distributed_c10d


def group_configurations() -> list[dict[str, Any]]:
    """Name, size and ranks of each process group that there is now."""
    configurations = getattr(_groups_module(), "_get_all_pg_configs", None)
    return [] if configurations is None else list(configurations())


def destroyed_world(before: Callable[[], None]) -> Callable[[], None]:
    """Call `before` right before the groups are forgotten. Returns what undoes it."""
    module, name = _groups_module(), "_update_default_pg"
    original = getattr(module, name, None)
    if original is None:
        return lambda: None

    def update(group: Any) -> Any:
        if group is None:
            before()
        return original(group)

    def undo() -> None:
        if getattr(module, name) is update:
            setattr(module, name, original)

    setattr(module, name, update)
    return undo


def _fast_range() -> RangeMaker | None:
    try:
        from torch._C._profiler import _RecordFunctionFast
    except ImportError:
        return None
    return _RecordFunctionFast


@functools.cache
def range_maker() -> RangeMaker:
    """What makes a range from a name. A range is entered once: it is not re-entrant."""
    return _fast_range() or torch.profiler.record_function


def range_functions(name: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """What enters and what leaves a range of this name, again and again: a `with` would look for
    them at each turn, and make three arguments for the second."""
    span: Any = range_maker()(name)
    leave = span.__exit__
    if not _leaves_without_arguments():
        leave = functools.partial(leave, None, None, None)
    return span.__enter__, leave


@functools.cache
def _leaves_without_arguments() -> bool:
    span: Any = range_maker()("")
    try:
        span.__exit__()
    except TypeError:
        return False
    except RuntimeError:  # while a profiler runs it says that it was not entered
        return True
    return True


def _config(**switches: Any) -> Any:
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(**switches)
    except (ImportError, TypeError):
        return None


def records_all_threads() -> bool:
    """Whether the profiler can record threads other than the one that starts it."""
    return _config(profile_all_threads=True) is not None


# What a torch may lack. The first is for what is not memory, whose events are made at the stop.
_LEAN = ("trace_only", "disable_external_correlation")


@functools.cache
def lean_config(*, all_threads: bool) -> Any:
    """The profiler configuration that costs least: the library of the device is not told of every
    operator, since the time of a launch says whose it is, and where torch can (2.13) a stop makes
    only what an export needs. None where torch cannot record every thread and that is asked."""
    wanted = _LEAN if all_threads else _LEAN[1:]
    known = {name: True for name in wanted if _config(**{name: True}) is not None}
    return _config(profile_all_threads=True, **known) if all_threads else _config(**known)


@functools.cache
def has_activity_filters() -> bool:
    """Whether `activities` may name single kinds of activity (torch 2.12)."""
    import torch.profiler.profiler as profiler_module

    return hasattr(profiler_module, "_parse_activities")


def profiler_is_on() -> bool:
    """Whether a profiler of torch runs, in this thread or, if it came from Python, in any."""
    here = getattr(_autograd, "_profiler_enabled", None)
    anywhere = getattr(autograd_profiler, "_is_profiler_enabled", False)
    return bool(anywhere) or bool(here is not None and here())


def hear_no_more(kinds: Collection[Any]) -> None:
    """Let the profiler that records see nothing of these kinds that begins from now on; where torch
    offers no way, it does."""
    toggle: Callable[..., None] | None = getattr(_autograd, "_toggle_collection_dynamic", None)
    if toggle is None or not profiler_is_on():
        return
    with contextlib.suppress(RuntimeError):
        toggle(False, set(kinds))


def record_no_more(*, in_frames: bool) -> None:
    """Let no profiler see what this process does; in a forked child, which cannot end one.
    `in_frames`: one listens to Python, too."""
    clear = getattr(_autograd, "_clear_callbacks", None)
    if clear is not None:
        clear()
    if in_frames:
        sys.setprofile(None)


def exit_of_children() -> Callable[[], object]:
    """A function for forked children, of a process that has used a profiler: they end without the
    destructors of C++, when Python has ended. That of the profiler waits for ever for a thread
    which they do not have (torch 2.13). Does nothing where the system has no such call (glibc)."""
    try:
        library = ctypes.CDLL(None)
        on_exit, at_exit = library.on_exit, library.__cxa_atexit
        end, flush = library._exit, library.fflush
    except (OSError, AttributeError, TypeError):
        return lambda: None
    # The last one first; the other is called with the status.
    return lambda: (on_exit(end, None), at_exit(flush, None, None))


def _never_in_backward() -> int:
    return -1


def graph_task_reader() -> Callable[[], int]:
    """A function that is not -1 while its thread runs a backward pass."""
    return getattr(torch._C, "_current_graph_task_id", _never_in_backward)


def is_plain_module_call(function: Callable[..., Any]) -> bool:
    """Whether this is torch's own `nn.Module.__call__`, and all that it does is to choose between
    a module's compiled call and the other."""
    own = getattr(torch.nn.Module, "_wrapped_call_impl", None)
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_names
    return function is own and set(names) == {"_compiled_call_impl", "_call_impl"}


def _code_skipper() -> Callable[[CodeType], None] | None:
    """A function that keeps the compiler from compiling a function of its own; it may still be
    traced as a part of another one. None where torch lacks it."""
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameExecStrategy(
            eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        )
        mark: Callable[[CodeType, Any], None] = eval_frame.set_code_exec_strategy
    except (ImportError, AttributeError):
        return None
    return lambda code: mark(code, skip)


def keep_compiler_out(*modules: ModuleType) -> None:
    """Let no function of these modules be compiled.

    Around a hook of ours the program may compile: torch's own module call is not compiled by
    itself then, and neither may what stands in its place.
    """
    skip = _code_skipper()
    if skip is None:
        return
    for module in modules:
        for code in _codes_in(vars(module).values(), module):
            skip(code)


def _codes_in(values: Iterable[Any], module: ModuleType) -> Iterator[CodeType]:
    for value in values:
        function = value.fget if isinstance(value, property) else value
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType) and code.co_filename == module.__file__:
            yield from _with_inner(code)
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            yield from _codes_in(vars(value).values(), module)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _builtin_table() -> dict[int, str] | None:
    try:
        from torch.jit import _builtins

        builtins: Any = _builtins
        table: dict[int, str] = builtins._get_builtin_table()
    except (ImportError, AttributeError):
        return None
    return table


def as_builtin(
    patch: Callable[..., Any], original: Callable[..., Any]
) -> Callable[[], None] | None:
    """Let scripts take `patch` for the builtin it stands for; returns what ends that. None where
    this torch offers no way, or the original is none of its builtins."""
    table = _builtin_table()
    name = None if table is None else table.get(id(original))
    if table is None or name is None:
        return None
    table[id(patch)] = name
    return lambda: _drop(table, id(patch))


def _drop(table: dict[int, str], key: int) -> None:
    table.pop(key, None)


AttentionQuestion = Callable[[Any, bool], bool]


@functools.cache
def attention_questions() -> Mapping[str, AttentionQuestion]:
    """For each fused attention whether it takes some parameters; asked with True it warns why
    not. Empty where this torch answers none."""
    questions = {
        "flash": "can_use_flash_attention",
        "efficient": "can_use_efficient_attention",
        "cudnn": "can_use_cudnn_attention",
    }
    cuda = torch.backends.cuda
    return {
        backend: getattr(cuda, name) for backend, name in questions.items() if hasattr(cuda, name)
    }


def attention_parameters(call: Mapping[str, Any]) -> Any:
    """The arguments of one attention as those questions take them; None where torch has no such
    type, or the call passes through a transformation that hides its tensors."""
    make = getattr(torch.backends.cuda, "SDPAParams", None)
    if make is None or _is_transformed():
        return None
    plain = (
        call["query"],
        call["key"],
        call["value"],
        call.get("attn_mask"),
        float(call.get("dropout_p", 0.0)),
        bool(call.get("is_causal", False)),
    )
    try:
        return make(*plain, bool(call.get("enable_gqa", False)))
    except TypeError:  # torch before 2.5 knows no grouped queries
        return make(*plain)


def is_tracing() -> bool:
    """Whether `torch.jit.trace` looks on: it takes each size that is asked for into its graph."""
    asked = getattr(torch._C, "_is_tracing", None)
    return asked is not None and bool(asked())


def _is_transformed() -> bool:
    """Whether a functorch transformation or a dispatch mode is active on this thread."""
    functorch = getattr(torch._C, "_functorch", None)
    peek = getattr(functorch, "peek_interpreter_stack", None)
    modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
    return bool((peek is not None and peek() is not None) or (modes is not None and modes()))


class CompiledSwitch(NamedTuple):
    """How a thread tells Dynamo that compiled code begins or ends."""

    module: ModuleType  # its callers take the function from here
    set: Callable[[Any], Any]  # None: it ends; anything else: it begins; answers what was before
    current: Callable[[], Any]  # what this thread has set


def _eval_frame_functions() -> tuple[Callable[[Any], Any], Callable[[], Any]] | None:
    try:
        from torch._C._dynamo.eval_frame import get_eval_frame_callback, set_eval_frame
    except ImportError:
        return None
    return set_eval_frame, get_eval_frame_callback


def compiled_switch() -> CompiledSwitch | None:
    """None where Dynamo is not loaded, this torch has no such functions, or one is replaced."""
    module, functions = sys.modules.get("torch._dynamo.eval_frame"), _eval_frame_functions()
    if module is None or functions is None:
        return None
    if getattr(module, "set_eval_frame", None) is not functions[0]:
        return None
    return CompiledSwitch(module, *functions)


def compiled_guards() -> list[str] | None:
    """What the code that Dynamo compiled in this process checks at each call, in words of torch's
    own; None where this torch does not list it."""
    convert = sys.modules.get("torch._dynamo.convert_frame")
    evaluate = sys.modules.get("torch._dynamo.eval_frame")
    seen = getattr(getattr(convert, "input_codes", None), "seen", None)
    entries_of = getattr(evaluate, "_debug_get_cache_entry_list", None)
    if seen is None or entries_of is None:
        return None
    codes = [code for reference in list(seen) if (code := reference()) is not None]
    guards = [entry.guard_manager for code in codes for entry in entries_of(code)]
    if not all(hasattr(guard, "code_parts") for guard in guards):
        return None
    return [part for guard in guards for part in guard.code_parts]

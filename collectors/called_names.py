"""What a line of the user calls, by the name that programs know it by."""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import itertools
import linecache
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from tracer.collectors.user_code import function_name

# Calls that never take long: threads take turns behind any, and are seen there.
_SHORT = frozenset(
    {f"time.{name}{unit}" for name in ("perf_counter", "monotonic", "time", "process_time",
                                       "thread_time") for unit in ("", "_ns")}
    | {"len", "isinstance", "issubclass", "getattr", "hasattr", "setattr", "callable", "range",
       "id", "type", "iter", "next", "abs", "bool", "int", "float", "zip", "enumerate"}
)  # fmt: skip
# Between a line and what it calls: wrappers, and ways from one function to another.
_WAYS = ("contextlib", "functools", "importlib", "tracer")


class Callee(NamedTuple):
    """A function in Python that a line calls, and its module. Of one that is not written in Python
    (`module` None) the code that calls it, and the place of the instruction in that."""

    code: CodeType
    module: str | None
    at: int = -1


class Callees:
    """Tells what lines of the user call; what is known of a function is asked once."""

    def __init__(self) -> None:
        self._known: dict[int, Callee | None] = {}  # by `id` of code, which is kept alive by
        self._kept: list[CodeType] = []  # being in here: its hash takes long

    def of(self, user: FrameType, inner: FrameType) -> Callee | None:
        """What the innermost frame of the user calls, where `inner` is the innermost of all; None
        where that is no function with a name."""
        if inner is user:
            return Callee(user.f_code, None, user.f_lasti)
        found: Callee | None = None
        known, frame = self._known, inner
        while frame is not user:
            key = id(frame.f_code)
            callee = known[key] if key in known else self._learn(frame)
            found = callee or found
            outer = frame.f_back
            if outer is None:
                break
            frame = outer
        return found

    def _learn(self, frame: FrameType) -> Callee | None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        named = not code.co_flags & inspect.CO_NESTED and not code.co_name.startswith("<")
        callee = None
        if named and module.partition(".")[0] not in _WAYS:
            callee = Callee(code, module)
        self._kept.append(code)
        self._known[id(code)] = callee
        return callee


def called_name(callee: Callee) -> str:
    """The name as programs write it (`torch.save`); "" where it cannot be told."""
    if callee.module is not None:
        return _public(callee.code, callee.module)
    text = _function_of(call_at(callee.code, callee.at))
    name = _resolved(text, callee.code.co_filename) if text else ""
    return "" if name in _SHORT else name


def _public(code: CodeType, module: str) -> str:
    """The function by the shortest module that offers it."""
    name = function_name(code)
    first, _, method = name.partition(".")
    for package in _packages(module):
        found = vars(sys.modules[package]).get(first) if package in sys.modules else None
        if method and isinstance(found, type):
            found = inspect.getattr_static(found, method, None)
        if _runs(found, code):
            return f"{package}.{name}".removesuffix(".__call__")
    return f"{module}.{name}".removesuffix(".__call__")


def _packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


def _runs(found: Any, code: CodeType) -> bool:
    """Whether this is the function of that code, or a wrapper of it."""
    wrapped = inspect.getattr_static(found, "__wrapped__", found)
    return inspect.isfunction(wrapped) and wrapped.__code__ is code


def call_at(code: CodeType, at: int) -> ast.Call | None:
    """The call of an instruction as the source writes it; None of any other instruction, and where
    this Python (before 3.11) does not say which part of a line an instruction is of."""
    if at < 0 or not hasattr(code, "co_positions"):
        return None
    operation = dis.opname[code.co_code[at]]
    if not operation.startswith(("CALL", "PRECALL")) or "INTRINSIC" in operation:
        return None
    place = next(itertools.islice(code.co_positions(), at // 2, None), (None,) * 4)
    line, end_line, column, end_column = place
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return _parsed(_source(code.co_filename, line, end_line, column, end_column))


def _source(file: str, line: int, end_line: int, column: int, end_column: int) -> str:
    """Columns count bytes."""
    lines = [text.encode() for text in linecache.getlines(file)[line - 1 : end_line]]
    if not lines:
        return ""
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode(errors="replace")


def _parsed(source: str) -> ast.Call | None:
    try:
        call = ast.parse(source.strip(), mode="eval").body
    except SyntaxError:
        return None
    return call if isinstance(call, ast.Call) else None


def _function_of(call: ast.Call | None) -> str:
    """The function that is called, where it has a name; else ""."""
    names: list[str] = []
    part: Any = None if call is None else call.func
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    return ".".join([part.id, *reversed(names)]) if isinstance(part, ast.Name) else ""


def _resolved(text: str, file: str) -> str:
    """The name with that of its module, where the module that it is written in imports it."""
    first, dot, rest = text.partition(".")
    value = _names_of(file).get(first)
    if isinstance(value, ModuleType):
        return f"{value.__name__}{dot}{rest}"
    module = getattr(value, "__module__", None) if inspect.isroutine(value) else None
    if rest or not isinstance(module, str) or module in ("builtins", "__main__"):
        return text
    return f"{module.removeprefix('_')}.{first}"


@lru_cache(maxsize=64)
def _names_of(file: str) -> Mapping[str, Any]:
    """The names of the module of a file."""
    known = (m for m in list(sys.modules.values()) if isinstance(m, ModuleType))
    return next((vars(m) for m in known if vars(m).get("__file__") == file), vars(builtins))

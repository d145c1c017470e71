"""What a thread waits for at an instruction whose work is not done in Python: locks and queues
written in C have no frame of their own."""

from __future__ import annotations

import ast
import dis
from types import CodeType

from tracer.collectors.called_names import call_at

LOCK, THREAD = "lock", "thread"
# `with lock:`. The context managers written in C that ever take long to enter are locks.
_ENTERS = ("BEFORE_WITH", "SETUP_WITH")


def awaited(code: CodeType, at: int) -> str:
    """LOCK, THREAD for what another thread or a request brings; "" where it is no such wait, or
    where it cannot be told."""
    if at < 0:
        return ""
    if dis.opname[code.co_code[at]] in _ENTERS:
        return LOCK
    call = call_at(code, at)
    return "" if call is None else _of_call(call)


def _of_call(call: ast.Call) -> str:
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name == "acquire":
        return LOCK
    # A dict is asked for a key, a queue for whatever comes next.
    if name == "get" and all(_is_flag(argument) for argument in call.args):
        return THREAD
    return THREAD if name == "poll" or ast.unparse(function) == "select.select" else ""


def _is_flag(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Constant) and isinstance(argument.value, bool)

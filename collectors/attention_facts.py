"""Why fused attention was refused, in the framework's own words.

While a trace lives, calls of `scaled_dot_product_attention` are noted with their line; where a
model is called again and again alike, those of some of its calls. For each distinct set of
arguments the framework is asked, once, which fused kernel would take them; it answers with
warnings. Nothing runs on the device for that.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import IO, Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from tracer.collectors import torch_private
from tracer.collectors.compiling.outside_compiled import OutsideCompiled
from tracer.collectors.thread_notes import WIDTH, Longs, ThreadNotes
from tracer.collectors.user_code import CodeKinds, as_written, line_of
from tracer.collectors.warning_hook import Warned, listen
from tracer.events import SIDE_TABLES, make_table, text_column

# Calls of a thread, sets of arguments, and shapes that are kept: a decode loop has a new shape in
# each step.
_MOST_CALLS, _MOST_SETS, _MOST_SHAPES = 200_000, 256, 20_000
_NOT_KEPT, _NESTED = -1, "nested"
_NAME = "scaled_dot_product_attention"
_POSITIONS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
# What the compiler takes for a constant. Tensors of an export are none of ours anyway.
_is_compiling = torch.compiler.is_dynamo_compiling
# Looked up at every call.
_plain, _caller, _now = torch.Tensor, sys._getframe, time.time_ns

_Shape = tuple[Any, ...]


@dataclass(frozen=True)
class _Set:
    """One set of arguments at one line."""

    arguments: str  # JSON
    refused: str  # JSON: backend -> reasons; "" where the framework was not asked
    file: str
    line: int
    function: str
    caller: CodeType  # kept, so that its `id` is not given to another


# [W1129 16:34:11.226 sdp_utils_cpp.h:418] Warning: For dense input, ... (function check_...)
_CPP_WARNING = re.compile(r"\[W\d+ [^\]]*sdp_utils[^\]]*\] Warning: (?P<text>.*)")
_MOST_WRITTEN = 1 << 20  # to standard error while it is looked at


class AttentionCalls:
    """Notes calls of attention between `start` and `close`."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._notes = ThreadNotes()
        self._sets: dict[_Shape, int] = {}
        self._rows: dict[int, _Set] = {}
        self._next_row = itertools.count()
        self._refused: dict[_Shape, dict[str, list[str]]] = {}
        # Shape -> its set, and the code that called so last.
        self._shapes: dict[_Shape | None, tuple[int, CodeType]] = {}
        self._code = CodeKinds()
        self._undo: list[Callable[[], None]] = []
        self._active = self._notes_calls = False

    def start(self) -> None:
        """Begin to note. Where code that calls attention was compiled before and would see it,
        nothing is: it would compile again."""
        original = getattr(functional, _NAME)
        watched = self._watched(original)
        keep_scripts = torch_private.as_builtin(watched, original)
        if keep_scripts is None:
            return
        self._undo.append(keep_scripts)

        def change(before: Callable[..., Any], now: Callable[..., Any]) -> None:
            if getattr(functional, _NAME) is before:
                setattr(functional, _NAME, now)

        outside = OutsideCompiled(
            _NAME, lambda: change(original, watched), lambda: change(watched, original)
        )
        self._undo += [self._stop, outside.close]
        if outside.start():
            self._active = self._notes_calls = True

    def rest(self) -> None:
        """Note nothing until `wake`."""
        self._notes_calls = False

    def wake(self) -> None:
        """Note calls again."""
        self._notes_calls = self._active

    def _stop(self) -> None:
        self._active = self._notes_calls = False  # a program may have taken the patch for itself

    def close(self) -> None:
        """Undo every change, the last first."""
        while self._undo:
            self._undo.pop()()

    def table(self) -> pd.DataFrame:
        """The table `attention_calls`."""
        times, threads, chosen = self._notes.columns()
        rows = [self._rows[number] for number in range(len(self._rows))]
        texts = {
            name: _text([getattr(row, name) for row in rows], chosen)
            for name in ("arguments", "refused", "file", "function")
        }
        lines = np.array([row.line for row in rows], dtype=np.int64)
        return make_table(
            SIDE_TABLES["attention_calls"],
            {
                "time_ns": times,
                "thread": threads,
                "line": lines[chosen] if rows else chosen,
                **texts,
            },
        )

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        own, shapes, learn = self._notes.own, self._shapes, self._learn

        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            if not _is_compiling() and self._notes_calls:
                try:
                    frame = _caller(1)
                    shape = _shape_of(args, kwargs, frame)
                    known = shapes.get(shape)
                    if known is not None and known[1] is frame.f_code:
                        chosen = known[0]
                    else:
                        chosen = learn(shape, args, kwargs, frame)
                    moments = own.moments
                    if chosen >= 0 and len(moments) < _MOST_CALLS * WIDTH:
                        moments.extend((_now(), chosen))
                except Exception as error:  # the border to the traced program
                    self.failure = error
            return original(*args, **kwargs)

        scaled_dot_product_attention.__doc__ = original.__doc__
        return scaled_dot_product_attention

    def _learn(
        self, shape: _Shape | None, args: _Shape, given: Mapping[str, Any], frame: FrameType
    ) -> int:
        """The set of a call unlike the one before it."""
        if shape is None or torch_private.is_tracing():
            return _NOT_KEPT
        answer = (id(frame.f_code), *_without_lengths(shape))
        chosen = self._sets.get(answer)
        if chosen is None:
            call = dict(zip(_POSITIONS, args, strict=False), **given)
            if "value" not in call:  # it will fail
                return _NOT_KEPT
            chosen = self._new_set(call, answer, frame)
        if len(self._shapes) < _MOST_SHAPES or shape in self._shapes:
            self._shapes[shape] = chosen, frame.f_code
        return chosen

    def _new_set(self, call: Mapping[str, Any], answer: _Shape, frame: FrameType) -> int:
        if len(self._rows) >= _MOST_SETS:
            return _NOT_KEPT
        user = self._code.innermost(frame) or frame
        code, arguments = user.f_code, describe_call(call)
        row = _Set(
            json.dumps(arguments),
            self._refusals_of(call, answer, arguments["switched_off"]),
            code.co_filename,
            line_of(user),
            as_written(code.co_name),
            frame.f_code,
        )
        # Two threads may be here at once: each has a row of its own.
        number = next(self._next_row)
        self._rows[number], self._sets[answer] = row, number
        return number

    def _refusals_of(self, call: Mapping[str, Any], answer: _Shape, switched_off: list[str]) -> str:
        """JSON. Asked once for what all backends take for the same, whatever line calls."""
        if not _has_choice(call["query"]):
            return ""
        question = (*_without_sizes(answer), call["value"].shape[-1], *switched_off)
        refused = self._refused.get(question)
        if refused is None:
            refused = refusals(call)
            if refused:  # that there are none may hold for this moment alone
                self._refused[question] = refused
        return json.dumps(refused)


def _has_choice(query: torch.Tensor) -> bool:
    """Whether the framework tells of these tensors which fused kernel would take them."""
    return query.is_cuda and not query.is_nested


def _text(values: list[str], chosen: Longs) -> Any:
    distinct = list(dict.fromkeys(values))
    codes = np.array([distinct.index(value) for value in values], dtype=np.int64)
    return text_column(codes[chosen] if values else chosen, distinct)


def _shape_of(args: _Shape, given: Mapping[str, Any], frame: FrameType) -> _Shape | None:
    """What tells two calls apart, cheaply: this runs at every call. None for one that is not ours
    to look at."""
    if len(args) > 1:
        query, key = args[0], args[1]
    else:
        query, key = args[0] if args else given.get("query"), given.get("key")
        if key is None:  # the call will fail
            return None
    if type(query) is not _plain:  # a subclass decides for itself
        nested = isinstance(query, torch.Tensor) and query.is_nested
        return _nested_shape(query, frame) if nested else None
    mask = args[3] if len(args) > 3 else given.get("attn_mask")
    try:
        return (
            query.shape,
            key.shape,
            query.dtype,
            None if mask is None else (mask.requires_grad, mask.dim()),
            args[4:] if len(args) > 4 else None,
            given.get("dropout_p"),
            given.get("is_causal"),
            given.get("enable_gqa"),
            frame.f_lasti,
        )
    except RuntimeError:  # nested tensors of the older kind have no shape
        return _nested_shape(query, frame)


def _nested_shape(query: Any, frame: FrameType) -> _Shape:
    return _NESTED, query.dtype, frame.f_lasti


def _without_lengths(shape: _Shape) -> _Shape:
    """No backend refuses a length for its own sake."""
    if shape[0] == _NESTED:
        return shape
    query, key = shape[:2]
    lengths = (query[-2] == 1, query[-2] == key[-2])
    return (query[:-2], query[-1], key[:-2], *lengths, *shape[2:])


def _without_sizes(answer: _Shape) -> _Shape:
    """Nor a size of the batch, nor for the line that calls."""
    query, size, key, *rest = answer[1:-1]
    return (len(query), query[:-1] == key[:-1], query[-1:], size, key[-1:], *rest)


def describe_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call, as far as a backend looks at them."""
    query, mask = call["query"], call.get("attn_mask")
    casts = torch.is_autocast_enabled(query.device.type) and query.dtype is torch.float32
    dtype = torch.get_autocast_dtype(query.device.type) if casts else query.dtype
    nested = bool(query.is_nested)
    shapes = {name: [] if nested else list(call[name].shape) for name in _POSITIONS[:3]}
    strided = not nested and any(call[name].stride(-1) != 1 for name in shapes)
    return {
        **shapes,
        "nested": nested,
        "dtype": str(dtype).removeprefix("torch."),
        "device": query.device.type,
        "mask": None if mask is None else list(mask.shape),
        "mask_learns": mask is not None and mask.requires_grad,
        "dropout": float(call.get("dropout_p", 0.0)),
        "causal": bool(call.get("is_causal", False)),
        "grouped": bool(call.get("enable_gqa", False)),
        "strided": strided,
        "switched_off": [name for name, is_on in _switches().items() if not is_on],
    }


def _switches() -> dict[str, bool]:
    """Which fused backends the program allows now."""
    cuda = torch.backends.cuda
    asked = {
        "flash": cuda.flash_sdp_enabled,
        "efficient": cuda.mem_efficient_sdp_enabled,
        "cudnn": getattr(cuda, "cudnn_sdp_enabled", None),
    }
    return {name: bool(ask()) for name, ask in asked.items() if ask is not None}


def refusals(call: Mapping[str, Any]) -> dict[str, list[str]]:
    """Backend -> what the framework has against these arguments, for each that refuses them."""
    if torch.is_autocast_enabled(call["query"].device.type):
        return {}  # another type arrives at the kernel than the tensors here have
    parameters = torch_private.attention_parameters(call)
    if parameters is None:
        return {}
    questions = torch_private.attention_questions()
    refusing = {name: ask for name, ask in questions.items() if not ask(parameters, False)}
    if not refusing:
        return {}
    refused = {}
    with _own_warnings() as messages, _error_output() as written:
        for backend, question in refusing.items():
            question(parameters, True)
            refused[backend] = [_first_words(text) for text in (*messages, *written())]
            messages.clear()
    return refused


def _first_words(text: str) -> str:
    return text.partition(" (Triggered internally")[0].partition(" (function ")[0].strip()


@contextmanager
def _error_output() -> Generator[Callable[[], list[str]]]:
    """Collect what the framework's own warnings write to the process's standard error (older
    versions bypass Python's); anything else that was written in that moment is passed on. Yields
    what tells those since it was asked last."""
    looked_at, others = 0, list[bytes]()
    with _file_in_memory() as caught:

        def warned() -> list[str]:
            nonlocal looked_at
            written = os.pread(caught.fileno(), _MOST_WRITTEN, looked_at)
            looked_at += len(written)
            texts = []
            for line in written.splitlines(keepends=True):
                found = _CPP_WARNING.match(line.decode("utf-8", "replace"))
                if found is None:
                    others.append(line)
                else:
                    texts.append(found["text"])
            return texts

        kept = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield warned
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            warned()
            os.write(2, b"".join(others))


def _file_in_memory() -> IO[bytes]:
    """On disk where the system has no such."""
    try:
        return os.fdopen(os.memfd_create("tracer"), "w+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


@contextmanager
def _own_warnings() -> Generator[list[str]]:
    """Collect the warnings of this thread; those of others go where they would have gone."""
    mine, messages = threading.get_ident(), list[str]()
    with warnings.catch_warnings():

        def takes(warned: Warned) -> bool:
            if threading.get_ident() != mine:
                return False
            messages.append(warned.text)
            return True

        warnings.simplefilter("always")
        listen(takes)
        yield messages

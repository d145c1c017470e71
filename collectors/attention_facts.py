"""Why fused attention was refused, in the framework's own words.

While a trace lives, calls of `scaled_dot_product_attention` are noted with their line. For each
distinct set of arguments the framework is asked, once, which fused kernel would take them; it
answers with warnings. Nothing runs on the device for that.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

from tracer.collectors import torch_private
from tracer.collectors.compiling.outside_compiled import OutsideCompiled
from tracer.collectors.warning_hook import Warned, listen
from tracer.events import SIDE_TABLES, make_table, text_column

# Calls, sets of arguments, and shapes that are kept: a decode loop has a new shape in each step.
_MOST_CALLS, _MOST_SETS, _MOST_SHAPES = 200_000, 256, 20_000
_NAME = "scaled_dot_product_attention"
_POSITIONS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_SKIPPED = ("torch.", "tracer.")
# What the compiler takes for a constant. Tensors of an export are none of ours anyway.
_is_compiling = torch.compiler.is_dynamo_compiling


@dataclass(frozen=True)
class _Set:
    """One set of arguments at one line."""

    arguments: str  # JSON
    refused: str  # JSON: backend -> reasons; "" where the framework was not asked
    file: str
    line: int
    function: str


# [W1129 16:34:11.226 sdp_utils_cpp.h:418] Warning: For dense input, ... (function check_...)
_CPP_WARNING = re.compile(r"\[W\d+ [^\]]*sdp_utils[^\]]*\] Warning: (?P<text>.*)")


class AttentionCalls:
    """Notes calls of attention between `start` and `close`."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._times = array("q")
        self._threads = array("q")
        self._chosen = array("q")
        self._sets: dict[tuple[Any, ...], int] = {}
        self._rows: list[_Set] = []
        # The code is kept, so that its `id` in the key is not given to another.
        self._shapes: dict[tuple[Any, ...], tuple[int, CodeType]] = {}
        self._native: dict[int, int] = {}  # thread as Python numbers it -> as the system does
        self._undo: list[Callable[[], None]] = []
        self._active = False

    def start(self) -> None:
        """Begin to note. Where code that calls attention was compiled before and would see it,
        nothing is: it would compile again."""
        original = getattr(functional, _NAME)
        watched = self._watched(original)
        keep_scripts = torch_private.as_builtin(watched, original)
        if keep_scripts is None:
            return
        self._undo.append(keep_scripts)

        def put_on() -> None:
            if getattr(functional, _NAME) is original:
                setattr(functional, _NAME, watched)

        def take_off() -> None:
            if getattr(functional, _NAME) is watched:
                setattr(functional, _NAME, original)

        outside = OutsideCompiled(put_on, take_off)
        if outside.start(_NAME):
            self._undo += [self._stop, outside.close]
            self._active = True

    def _stop(self) -> None:
        self._active = False  # a program may have taken the patch for itself

    def close(self) -> None:
        """Undo every change, the last first."""
        while self._undo:
            self._undo.pop()()

    def table(self) -> pd.DataFrame:
        """The table `attention_calls`."""
        rows, chosen = self._rows, np.array(self._chosen, dtype=np.int64)
        texts = {
            name: _text([getattr(row, name) for row in rows], chosen)
            for name in ("arguments", "refused", "file", "function")
        }
        lines = np.array([row.line for row in rows], dtype=np.int64)
        return make_table(
            SIDE_TABLES["attention_calls"],
            {
                "time_ns": np.array(self._times, dtype=np.int64),
                "thread": [self._native[thread] for thread in self._threads],
                "line": lines[chosen] if rows else chosen,
                **texts,
            },
        )

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            if not _is_compiling() and self._active:
                try:
                    self._note(args, kwargs, sys._getframe(1))
                except Exception as error:  # the border to the traced program
                    self.failure = error
            return original(*args, **kwargs)

        scaled_dot_product_attention.__doc__ = original.__doc__
        return scaled_dot_product_attention

    def _note(self, args: tuple[Any, ...], given: Mapping[str, Any], frame: FrameType) -> None:
        tensors = args[:3] if len(args) >= 3 else _named(args, given)
        query = tensors[0]
        if query.is_nested:
            shape: tuple[Any, ...] = ("nested", query.dtype, id(frame.f_code), frame.f_lasti)
        elif type(query) is torch.Tensor:
            shape = _shape_of(tensors, args, given, frame)
        else:  # another subclass decides for itself
            return
        known = self._shapes.get(shape)
        if known is None:
            found = self._set_of(dict(zip(_POSITIONS, args, strict=False), **given), shape, frame)
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[shape] = found, frame.f_code
        else:
            found = known[0]
        if found >= 0 and len(self._times) < _MOST_CALLS:
            thread = threading.get_ident()
            if thread not in self._native:
                self._native[thread] = threading.get_native_id()
            self._chosen.append(found)
            self._threads.append(thread)
            self._times.append(time.time_ns())

    def _set_of(self, call: Mapping[str, Any], shape: tuple[Any, ...], frame: FrameType) -> int:
        query = call["query"]
        answer = shape if query.is_nested else _without_lengths(query, call["key"], shape)
        found = self._sets.get(answer)
        if found is not None:
            return found
        if len(self._rows) >= _MOST_SETS:
            return -1
        user = _user_frame(frame)
        code = user.f_code
        refused = json.dumps(refusals(call)) if query.is_cuda and not query.is_nested else ""
        self._rows.append(
            _Set(
                json.dumps(describe_call(call)),
                refused,
                code.co_filename,
                user.f_lineno,
                code.co_name,
            )
        )
        self._sets[answer] = len(self._rows) - 1
        return len(self._rows) - 1


def _text(values: list[str], chosen: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    distinct = list(dict.fromkeys(values))
    codes = np.array([distinct.index(value) for value in values], dtype=np.int64)
    return text_column(codes[chosen] if values else chosen, distinct)


def _shape_of(
    tensors: tuple[Any, ...], args: tuple[Any, ...], given: Mapping[str, Any], frame: FrameType
) -> tuple[Any, ...]:
    """What tells two calls apart, cheaply: this runs at every call."""
    query, key, _ = tensors
    mask = args[3] if len(args) > 3 else given.get("attn_mask")
    return (
        query.shape,
        key.shape,
        query.dtype,
        None if mask is None else mask.requires_grad,
        args[4:],
        given.get("dropout_p"),
        given.get("is_causal"),
        given.get("enable_gqa"),
        id(frame.f_code),  # to hash code takes as long as all the rest
        frame.f_lasti,
    )


def _without_lengths(
    query: torch.Tensor, key: torch.Tensor, shape: tuple[Any, ...]
) -> tuple[Any, ...]:
    """No backend refuses a length for its own sake."""
    lengths = (query.shape[-2] == 1, query.shape[-2] == key.shape[-2])
    return (query.shape[:-2], query.shape[-1], key.shape[:-2], *lengths, *shape[2:])


def _named(args: tuple[Any, ...], given: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*args, *(given[name] for name in _POSITIONS[len(args) : 3]))


def _user_frame(frame: FrameType) -> FrameType:
    """The innermost frame that is neither the framework's nor ours; the given one if all are."""
    found: FrameType | None = frame
    while found is not None and _is_plumbing(found):
        found = found.f_back
    return found or frame


def _is_plumbing(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return name == "torch" or name.startswith(_SKIPPED)


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
    refused = {}
    for backend, question in torch_private.attention_questions().items():
        if question(parameters, False):
            continue
        with _own_warnings() as messages, _error_output() as written:
            question(parameters, True)
        refused[backend] = [_first_words(text) for text in (*messages, *written)]
    return refused


def _first_words(text: str) -> str:
    return text.partition(" (Triggered internally")[0].partition(" (function ")[0].strip()


@contextmanager
def _error_output() -> Generator[list[str]]:
    """Collect what the framework's own warnings write to the process's standard error (older
    versions bypass Python's); anything else that was written in that moment is passed on."""
    warned: list[str] = []
    with tempfile.TemporaryFile() as caught:
        kept = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield warned
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            for line in caught.read().splitlines(keepends=True):
                found = _CPP_WARNING.match(line.decode("utf-8", "replace"))
                if found is None:
                    os.write(2, line)
                else:
                    warned.append(found["text"])


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

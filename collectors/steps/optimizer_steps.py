"""When steps of optimizers end, for recordings without the profiler, which writes ranges of them.

A call of a model says nothing of the backward pass and the optimizer after it. Where the optimizer
has done its step, the step of the training ends.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tracer.collectors.steps.device_steps import DeviceSteps

OWNER = "optimizer"
_WIDTH = 4

# A constant to the compiler, as in `module_ranges`.
_is_compiling = torch.compiler.is_dynamo_compiling


class OptimizerSteps:
    """Notes the end of each step of a torch optimizer, between `start` and `close`, and marks it
    on the device."""

    def __init__(self, marks: DeviceSteps, on_failure: Callable[[str, Exception], None]) -> None:
        self._marks = marks
        self._on_failure = on_failure
        self._rows = array("q")  # start_ns, end_ns, thread, class
        self._classes: dict[str, int] = {}
        self._handle: Any = None

    def start(self) -> None:
        """Be told from now on."""
        self._handle = register_optimizer_step_post_hook(self._stepped)

    def close(self) -> None:
        """No longer."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _stepped(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if _is_compiling():
            return
        try:
            self._note(type(optimizer).__name__)
        except Exception as error:  # the border to the traced program
            self._on_failure("a step of an optimizer", error)

    def _note(self, name: str) -> None:
        self._marks.begin(OWNER)
        start_ns = time.time_ns()
        self._marks.end(OWNER)
        end_ns = max(time.time_ns(), start_ns + 1)
        code = self._classes.setdefault(name, len(self._classes))
        self._rows.extend((start_ns, end_ns, threading.get_native_id(), code))

    def table(self) -> pd.DataFrame:
        """The end of each, named as the profiler names their ranges; may be asked while the trace
        runs."""
        rows = np.array(self._rows[:], dtype=np.int64).reshape(-1, _WIDTH)
        names = [f"Optimizer.step#{name}.step" for name in list(self._classes)]
        table = pd.DataFrame(rows[:, :3], columns=pd.Index(["start_ns", "end_ns", "thread"]))
        return table.assign(name=[names[code] for code in rows[:, 3].tolist()])

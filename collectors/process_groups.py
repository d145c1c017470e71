"""The process groups of this process: those that are there when the trace begins or ends, and
those that the program destroys meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer.collectors.torch_private import destroyed_world, group_configurations


class ProcessGroups:
    """Knows every group that it has seen, between `start` and `close`."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._own: dict[str, Any] = {}
        self._groups: dict[str, dict[str, Any]] = {}
        self._undo: Callable[[], None] | None = None

    def start(self) -> None:
        """Look at the groups now, and before the program destroys them."""
        import torch.distributed as distributed

        if not distributed.is_available():
            return
        self._look()
        self._undo = destroyed_world(self._look_unnoticed)

    def close(self) -> None:
        """Look a last time."""
        if self._undo is not None:
            self._undo()
            self._undo = None
            self._look()

    def table(self) -> dict[str, Any]:
        """What a `TraceMeta` has of them; empty where the process was in no group."""
        groups = {"process_groups": tuple(self._groups.values())} if self._groups else {}
        return {**self._own, **groups}

    def _look_unnoticed(self) -> None:
        try:
            self._look()
        except Exception as error:  # the border to the program, which ends its groups
            self.failure = error

    def _look(self) -> None:
        import torch.distributed as distributed

        if not distributed.is_initialized():
            return
        self._own = {
            "rank": distributed.get_rank(),
            "world_size": distributed.get_world_size(),
            "backend": distributed.get_backend(),
        }
        for group in group_configurations():
            self._groups[str(group.get("pg_name"))] = group

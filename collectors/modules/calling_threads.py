"""Which threads could call a module: while there is but one, its calls need not be told apart from
those of others."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

# Threads that call no module: those of a recording by name, others by who runs in them.
_OWN_THREADS = "tracer-"
_OTHER_THREADS = (
    "tqdm.", "torch.utils.data.", "torch._inductor.", "opentelemetry.", "logging.handlers",
    "prometheus_client.", "wandb.", "tensorboard.", "ipykernel.", "IPython.", "zmq.", "execnet.",
    "debugpy.", "_pydevd_bundle.",
)  # fmt: skip
# Whose threads mostly wait, or do other work: transformers loads weights with them.
_POOLS = "concurrent.futures."


def _list_of_threads() -> Callable[[], list[threading.Thread]]:
    """What lists the threads that run, in one call of C code where this Python allows it: the
    public function takes a lock, and makes two lists for those that have not begun to run."""
    running: object = getattr(threading, "_active", None)
    if not isinstance(running, dict):
        return threading.enumerate
    threads: Callable[[], list[threading.Thread]] = functools.partial(list, running.values())
    return threads


threads_now = _list_of_threads()


class CallingThreads:
    """Asked at each call of a root, by the thread that calls."""

    def __init__(self) -> None:
        self._trusts_pools = True
        self._others = False
        self._seen: list[threading.Thread] = []  # that were there when it was last asked
        self._calling: list[int | None] = []  # those of them that could call a module
        self._only: int | None = None  # of them, if no other is there
        self._callers: set[int | None] = set()  # those that have called a root

    def alone(self) -> bool:
        """Whether no thread but this one is there that could call a module."""
        own = threading.get_ident()
        threads = threads_now()
        if threads != self._seen or own not in self._calling:
            self._callers.add(own)
            self._calling = [thread.ident for thread in threads if self._could_call(thread)]
            self._seen = threads
            # A thread that Python did not start is in no list: from then on nobody is alone.
            self._others |= own not in self._calling
            alone = self._calling == [own] and not self._others
            self._only = own if alone else None
        return self._only == own

    def distrust_pools(self) -> None:
        """A thread of a pool may have called modules within a call of another."""
        if self._trusts_pools:
            self._trusts_pools, self._seen = False, []

    def _could_call(self, thread: threading.Thread) -> bool:
        if thread.ident in self._callers:
            return True
        runs = getattr(thread, "_target", None) or type(thread)
        module = str(getattr(runs, "__module__", ""))
        if module.startswith(_POOLS):
            return not self._trusts_pools
        return not module.startswith(_OTHER_THREADS) and not thread.name.startswith(_OWN_THREADS)

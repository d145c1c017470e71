"""Threads that could call a module, beside the one that does."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tracer.collectors.modules.calling_threads import CallingThreads


@contextmanager
def waiting(name: str | None = None, module: str = __name__) -> Generator[None]:
    """Beside a thread of this name, which runs a function of this module."""
    end = threading.Event()

    def wait() -> None:
        end.wait(30)

    wait.__module__ = module
    thread = threading.Thread(target=wait, name=name)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@pytest.fixture
def pool() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        made.submit(int).result()
        yield made


def test_a_thread_of_unknown_work_could_call() -> None:
    threads = CallingThreads()
    assert threads.alone()
    with waiting():
        assert not threads.alone()
    assert threads.alone()


@pytest.mark.parametrize(
    ("name", "module"),
    [("tracer-stacks", __name__), ("pins", "torch.utils.data._utils.pin_memory")],
)
def test_some_threads_call_nothing(name: str, module: str) -> None:
    with waiting(name, module):
        assert CallingThreads().alone()


def test_a_pool_waits_until_one_of_its_threads_has_called(pool: ThreadPoolExecutor) -> None:
    threads = CallingThreads()
    assert threads.alone()
    assert not pool.submit(threads.alone).result()
    assert not threads.alone()


def test_a_pool_is_not_trusted_for_ever(pool: ThreadPoolExecutor) -> None:
    threads = CallingThreads()
    assert threads.alone()
    threads.distrust_pools()
    assert not threads.alone()


def test_beside_a_thread_that_python_did_not_start_nobody_is_alone() -> None:
    threads, answers, done = CallingThreads(), list[bool](), threading.Event()

    def ask() -> None:
        answers.append(threads.alone())
        done.set()

    assert threads.alone()
    _thread.start_new_thread(ask, ())
    assert done.wait(30)
    assert answers == [False]
    assert not threads.alone()

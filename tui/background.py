"""Work beside the screen, on threads that never keep the program from ending."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

from textual.message import Message
from textual.message_pump import MessagePump

from tracer.tui.messages import Crashed

THREAD_NAME = "tracer-explorer"


def run_beside(pump: MessagePump, work: Callable[[], Message | None]) -> Thread:
    """Run `work` on its own thread and post what it returns.

    The threads of Textual's workers are joined at exit, so that `q` would wait for a recording to
    be read; these are not.
    """

    def body() -> None:
        try:
            message = work()
        except Exception as error:
            # The border between the thread and the screen: the screen ends with this error.
            message = Crashed(error)
        if message is not None:
            pump.post_message(message)

    thread = Thread(target=body, name=THREAD_NAME, daemon=True)
    thread.start()
    return thread

"""Export from a thread of its own, so that the traced program never waits for a collector."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from tracer.exporters.otlp.delivery import Clock
from tracer.exporters.otlp.report import DeliveryReport

# What a program that ends may wait for an export under way: a receiver on this machine takes the
# folded default in a tenth of it. What is left then is kept in the file of undelivered spans.
EXIT_GRACE_S = 2.0
# Until then the recording is still being analysed, which takes seconds where it is large.
ANALYSIS_GRACE_S = 60.0
_LOG = logging.getLogger("tracer.otlp")


class BackgroundExport:
    """An export under way. `report` is None until it has ended, `error` tells why it could not be.

    `deliver` is called in the thread with a function that takes the delivery's clock.
    """

    def __init__(self, deliver: Callable[[Callable[[Clock], None]], DeliveryReport]) -> None:
        self.report: DeliveryReport | None = None
        self.error: Exception | None = None
        self._deliver = deliver
        self._clock: Clock | None = None
        self._analysed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracer-otlp", daemon=True)

    def start(self) -> BackgroundExport:
        self._thread.start()
        atexit.register(self.finish)
        return self

    def wait(self, timeout_s: float | None = None) -> DeliveryReport | None:
        """Wait for the end, for a program that wants to know."""
        self._thread.join(timeout_s)
        return self.report

    def finish(self, grace_s: float = EXIT_GRACE_S) -> None:
        """End the export: a short wait, then what is not delivered is kept in a file."""
        self._analysed.wait(ANALYSIS_GRACE_S)
        self._thread.join(grace_s)
        if self._thread.is_alive() and self._clock is not None:
            self._clock.stop()
            self._thread.join(grace_s)
        if self._thread.is_alive():
            _LOG.warning("tracer: not exported: the program ended before the export did")
        atexit.unregister(self.finish)

    def _set_clock(self, clock: Clock) -> None:
        self._clock = clock
        self._analysed.set()

    def _work(self) -> None:
        try:
            self.report = self._deliver(self._set_clock)
        except Exception as error:  # the border to the traced program: it must not notice
            self.error = error
            _LOG.warning("tracer: not exported: %s", error)
        else:
            if not self.report.complete:
                _LOG.warning("tracer: %s", self.report.text())
        finally:
            self._analysed.set()
            atexit.unregister(self.finish)

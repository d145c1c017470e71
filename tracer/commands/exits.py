"""Exit statuses of the commands, beside 0, a report was made, and 2, wrong usage."""

from __future__ import annotations

GATE_FAILED = 1  # or an export was not delivered whole
NO_REPORT = 3
PARTIAL = 4  # a report was made, but the input was damaged or cut

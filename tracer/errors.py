"""The errors a user can meet, as one tree.

TracerError
├── UsageError            a wrong argument or a wrong call            exit 2
├── InputError            no report can be made from this input       exit 3
│   ├── NotATraceError    the file is something else, named for what it is
│   ├── EmptyTraceError   nothing was recorded in it
│   ├── TooLargeError     a stated limit was reached
│   └── RunFormatError    a saved run of an unknown version or a broken one
├── OutputError           the report could not be written              exit 3
├── CaptureError          a live capture could not start or finish    exit 3
└── DeliveryError         an export was not delivered whole           exit 1

A message names the file or the value and says what to do. The command line prints it as one line
on stderr and returns `exit_code`.
"""


class TracerError(Exception):
    """Base of every error this package raises on purpose. `rule` is the stable dotted name."""

    exit_code = 3
    rule = "tracer.error"

    def __init__(self, message: str, *, rule: str | None = None) -> None:
        super().__init__(message)
        if rule is not None:
            self.rule = rule


class UsageError(TracerError):
    """The call or the command line is wrong."""

    exit_code = 2
    rule = "tracer.usage"


class InputError(TracerError):
    """No report can be made from this input."""

    rule = "trace.unreadable"


class NotATraceError(InputError):
    """The file is not a timeline; the message says what it is and what to give instead."""

    rule = "trace.not_a_trace"


class EmptyTraceError(InputError):
    """The file holds no event."""

    rule = "trace.empty"


class TooLargeError(InputError):
    """A stated limit was reached; the message names the option that narrows the input."""

    rule = "trace.too_large"


class RunFormatError(InputError):
    """A saved run that this version cannot read."""

    rule = "run.format"


class OutputError(TracerError):
    """The report was made and could not be written."""

    rule = "report.not_written"


class CaptureError(TracerError):
    """A live capture could not start or finish."""

    rule = "capture.failed"


class DeliveryError(TracerError):
    """An export was not delivered whole."""

    exit_code = 1
    rule = "export.incomplete"

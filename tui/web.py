"""The explorer in a browser, through `textual-serve`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from tracer.errors import UsageError

HOST = "127.0.0.1"


def serve(arguments: Sequence[str], port: int) -> None:
    """Serve `tracer <arguments>` on this machine until Ctrl+C."""
    try:
        from textual_serve.server import Server  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise UsageError(
            "--web needs textual-serve: pip install 'llm-stack-tracer[web]'"
        ) from error
    command = shlex.join([sys.executable, "-m", "tracer", *arguments])
    # The page draws what a UTF-8 terminal would.
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    print(f"tracer: open http://{HOST}:{port} in a browser; Ctrl+C ends", file=sys.stderr)
    Server(command, host=HOST, port=port, title="tracer").serve()

"""Golden files: compare, or write anew with UPDATE_GOLDEN=1 (then read the diff)."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def check_golden(name: str, text: str) -> None:
    """Fail unless the text is that of the golden file."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; UPDATE_GOLDEN=1 rewrites it"

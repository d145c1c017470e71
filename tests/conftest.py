"""Where the shared recordings are: $TRACER_SHARED, or `../shared` beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).resolve().parents[2] / "shared"
SHARED = Path(os.environ.get("TRACER_SHARED", _DEFAULT))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings with known answers; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no recordings at {SHARED}: set TRACER_SHARED to their folder")
    return SHARED

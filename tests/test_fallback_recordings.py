"""Recordings of the programs of samples/fallbacks, made on a GPU by tests/gpu with
TRACER_KEEP_RECORDINGS set, and read here where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fallback_samples import SAMPLES, check
from tracer.analyzers import analyze
from tracer.sources import open_source

FOLDER = Path(__file__).parent / "recordings" / "fallbacks"


def test_recordings_of_a_gpu() -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"no recordings at {FOLDER}")
    by_name = {sample.name: sample for sample in SAMPLES}
    runs = sorted(path for path in FOLDER.iterdir() if path.is_dir())
    assert runs
    for run in runs:
        clean = run.name.endswith("_clean")
        analysis = analyze(open_source(run))
        check(by_name[run.name.removesuffix("_clean")], analysis, clean=clean)

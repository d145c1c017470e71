"""The sample that walks the whole stack, on the CPU with its smallest model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_walk_on_a_cpu() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    done = subprocess.run(
        [sys.executable, str(_ROOT / "samples/stack_walk.py"), "--size", "tiny", "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(_ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    text = done.stdout
    assert re.findall(r"^== (\d)\.", text, re.M) == ["1", "2", "3", "4", "5"]
    counted = re.search(r"^parameters +([\d,]+)$", text, re.M)
    bytes_of_formula = re.search(r"^weights +([\d,]+) bytes", text, re.M)
    held = re.search(r"^held +([\d,]+) bytes", text, re.M)
    assert counted and bytes_of_formula and held
    assert bytes_of_formula[1] == held[1]
    trained = re.search(r"trainable ([\d,]+) parameters; the arithmetic says ([\d,]+)", text)
    assert trained is not None
    assert trained[1] == trained[2]
    assert "attention implementation: sdpa" in text
    assert len(re.findall(r"peak memory [\d.]+ GB", text)) == 2
    assert "WHERE THE TIME GOES" in text

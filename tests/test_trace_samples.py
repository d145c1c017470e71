"""The samples run, and their reports say what the programs did."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from tracer.analysis import BUCKET_CODE
from tracer.recorder import Recording

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.usefixtures("one_thread", "quietly"),
]


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """The recordings that a program makes."""
    made: list[Recording] = []
    start = Recording.start

    def noting(self: Recording, caller: Any) -> None:
        made.append(self)
        start(self, caller)

    monkeypatch.setattr(Recording, "start", noting)
    return made


def run(monkeypatch: pytest.MonkeyPatch, name: str, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(SAMPLES / name), run_name="__main__")


def phases(recording: Recording) -> dict[str, int]:
    found = recording.report["phases"].items()
    return {name: phase["steps"] for name, phase in found if "part_of" not in phase}


def test_decode_loop(
    monkeypatch: pytest.MonkeyPatch,
    recordings: list[Recording],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    run(monkeypatch, "decode_loop.py", "--tokens", "4", "--out", str(tmp_path / "run"))
    assert phases(recordings[0]) == {"prefill": 1, "decode": 3}
    assert "4: 3 decode, 1 prefill" in capsys.readouterr().out
    assert (tmp_path / "run" / "meta.json").is_file()
    roles = {m["path"]: m["role"] for m in recordings[0].report["modules"]}
    assert roles["layers.0.attention"] == "attention"
    assert roles["layers.0.ffn"] == "ffn"


@pytest.mark.parametrize("beams", ["1", "3"])
def test_generate(monkeypatch: pytest.MonkeyPatch, recordings: list[Recording], beams: str) -> None:
    run(monkeypatch, "generate.py", "--tokens", "4", "--beams", beams)
    assert phases(recordings[0]) == {"prefill": 1, "decode": 3}
    assert {step["batch"] for step in recordings[0].report["steps"]} == {2 * int(beams)}


def test_generate_runs_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
    recordings: list[Recording],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(monkeypatch, "generate.py", "--tokens", "2", "--untraced")
    assert capsys.readouterr().out == "(2, 34)\n"
    assert recordings == []


def test_lora_training(monkeypatch: pytest.MonkeyPatch, recordings: list[Recording]) -> None:
    run(monkeypatch, "lora_training.py")
    recording = recordings[0]
    assert phases(recording) == {"training": 3}
    work = recording.analysis.work
    charged = work["charged_ns"]
    of_modules = work["bucket"] != BUCKET_CODE["other", "optimizer"]
    in_a_module = charged[work["module"] >= 0].sum()
    assert in_a_module >= 0.99 * charged[of_modules].sum()
    assert {"forward", "backward", "optimizer"} <= set(work["direction"])

"""Ranks on a Ray cluster, started here: the same answer as in processes of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.rank_samples import compared, late_rank_calls, save_ranks, straggler
from tracer import cli
from tracer.exporters.ranks_text import render_ranks


@pytest.fixture(scope="module")
def python_with_ray(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has Ray: this one, or one of a new environment that sees this one's."""
    if importlib.util.find_spec("ray") is not None:
        return sys.executable
    folder = tmp_path_factory.mktemp("ray")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    installed = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", "ray"], capture_output=True, check=False
    )
    if installed.returncode:
        pytest.skip("Ray could not be installed: no package index")
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    made = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    link = Path(made.stdout.strip()) / "beside.pth"
    link.write_text(sysconfig.get_paths()["purelib"] + "\n")
    return str(python)


@pytest.mark.slow
@pytest.mark.network
def test_ray_finds_the_same(tmp_path: Path, python_with_ray: str) -> None:
    save_ranks(tmp_path / "run", late_rank_calls(), 4)
    home = tmp_path / "home"
    home.mkdir()

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [python_with_ray, "-m", "tracer", "ranks", *arguments, "--engine", "ray"],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=Path(__file__).resolve().parents[1],
            env={**os.environ, "HOME": str(home), "COLUMNS": "100"},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    analysis = compared(tmp_path / "run")
    assert run(str(tmp_path / "run"), "--workers", "2") == render_ranks(analysis, width=100)
    document = json.loads(run(f"file://{tmp_path / 'run'}", "--json"))
    assert [report["source"]["rank"] for report in document["ranks"]] == [0, 1, 2, 3]
    (finding,) = document["findings"]
    assert (finding["detail"]["rank"], finding["detail"]["last"]) == (2, 20)
    assert straggler(analysis) == (2, 20, 20)


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    save_ranks(tmp_path, late_rank_calls(calls=2), 2)
    assert cli.main(["ranks", str(tmp_path), "--engine", "ray"]) == 2
    assert "[ray]" in capsys.readouterr().err

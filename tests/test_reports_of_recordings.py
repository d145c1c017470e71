"""Every recording gets a report in each form: fits the schema and the page, says something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.cells import cell_len

from tests.conftest import SHARED
from tracer.analyzers import analyze
from tracer.errors import TracerError
from tracer.exporters import json_report
from tracer.exporters.html import to_html
from tracer.exporters.json_report import report_text, to_report
from tracer.exporters.sentence import verdict
from tracer.exporters.text import render_text
from tracer.held_ranks import split_rank
from tracer.sources import find_sources, open_source

_SMALL_BYTES = 120_000
_LARGE_BYTES = 3_000_000


def _recordings() -> list[Any]:
    folders = [SHARED / name for name in ("h200", "h200x2", "traces")]
    files = [path for folder in folders if folder.is_dir() for path in find_sources(folder)]
    return [
        pytest.param(path, id=path.name, marks=[] if _small(path) else [pytest.mark.slow])
        for path in files
        if _bytes(path) < _LARGE_BYTES and ".truth." not in path.name
    ]


def _small(path: Path) -> bool:
    return _bytes(path) < _SMALL_BYTES


def _bytes(path: Path) -> int:
    file, _ = split_rank(path)
    return file.stat().st_size


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = Path(json_report.__file__).with_name("report.schema.json")
    return jsonschema.Draft202012Validator(json.loads(schema.read_text()))


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("path", _recordings())
def test_each_form_of_the_report(path: Path, validator: Any) -> None:
    try:
        analysis = analyze(open_source(path))
    except TracerError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        return
    validator.validate(json.loads(report_text(to_report(analysis))))
    text = render_text(analysis, width=80, ascii=False)
    assert max(map(cell_len, text.splitlines())) <= 80
    assert " nan" not in text
    said = verdict(analysis)
    assert said.endswith(".")
    assert "  " not in said
    assert to_html(analysis).endswith("</html>\n")

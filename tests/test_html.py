"""The page: whole, self-contained, and safe whatever the names are."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.make_analysis import Step, make_analysis
from tests.sample_analyses import decode_analysis, hostile_analysis, unusable_analysis
from tracer.analysis import GROUPS
from tracer.exporters.html import to_fragment, to_html
from tracer.exporters.html_style import CSS
from tracer.exporters.sentence import verdict
from tracer.findings import Finding

_VOID = {"meta", "br", "rect"}


class Page(HTMLParser):
    """Checks that tags close in order, and keeps what tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("make", [decode_analysis, hostile_analysis, unusable_analysis])
def test_the_page_is_whole_and_loads_nothing(make: object) -> None:
    assert callable(make)
    text = to_html(make())
    page = Page(text)
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    for _, attributes in page.tags:
        assert not set(attributes) & {"src", "href", "onload", "onclick", "srcset", "action"}
    assert "url(" not in text
    assert "@import" not in text
    policy = next(a for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_names_of_a_trace_are_text() -> None:
    text = to_html(hostile_analysis())
    words = "".join(Page(text).words)
    assert "</td><script>alert(1)</script>" in words
    assert "<script" not in text
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066\ufeff\ud800]", text)
    text.encode("utf-8")


def test_the_page_leads_with_the_verdict() -> None:
    page = Page(to_html(decode_analysis()))
    assert page.words[page.words.index(verdict(decode_analysis()))]
    assert next(tag for tag, _ in page.tags if tag in ("h1", "h2")) == "h1"


def test_bars_are_as_wide_as_the_page() -> None:
    steps = [Step("decode", {"attention.core": 1.0, "ffn.projection": 2.0, "overhead.sync": 1.0})]
    rects = [a for tag, a in Page(to_html(make_analysis(steps * 2))).tags if tag == "rect"]
    bar = [a for a in rects if a.get("height") == "26.00"][:3]
    assert [(a["class"], a["x"], a["width"]) for a in bar] == [
        ("g-attention", "0.00", "250.00"),
        ("g-ffn", "250.00", "500.00"),
        ("g-overhead", "750.00", "250.00"),
    ]


def test_a_column_for_each_step_or_the_slowest_of_each_bin() -> None:
    steps = [Step("decode", {"ffn.projection": float(i % 7 + 1)}) for i in range(1000)]
    rects = [a for tag, a in Page(to_html(make_analysis(steps))).tags if tag == "rect"]
    columns = [a for a in rects if a.get("width") == "3.60"]
    assert len(columns) == 250
    assert {a["height"] for a in columns} == {f"{160 * n / 7:.2f}" for n in (4, 5, 6, 7)}


def test_what_was_not_measured_is_said() -> None:
    words = " ".join(Page(to_html(unusable_analysis())).words)
    assert "Not known: 200 launches recorded, 0 device events" in words
    assert "0.0 %" not in words


def test_several_reports_and_a_fragment() -> None:
    whole = to_html(decode_analysis(), unusable_analysis())
    assert whole.count('<div class="tracer-report">') == 2
    fragment = to_fragment(decode_analysis())
    assert "<html" not in fragment
    rules = re.findall(r"([^{}]+)\{", fragment[: fragment.index("</style>")])
    for selector in rules:
        assert selector.lstrip("<style>\n").lstrip().startswith((".tracer-report", "@media"))


def test_phases_have_their_times_and_speed() -> None:
    words = Page(to_html(decode_analysis())).words
    at = words.index("Phases")
    assert words[at + 1 : at + 6] == ["phase", "median", "p95", "steps", "tok/s"]
    longest = max(decode_analysis().phases, key=lambda phase: phase.wall_ns)
    assert [words[at + 6], words[at + 9]] == [longest.name, f"{longest.steps:,}"]


def _colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+):(#[0-9a-f]+)", css))


def _luminance(colour: str) -> float:
    """As WCAG 2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(*colours: str) -> float:
    darker, lighter = sorted(map(_luminance, colours))
    return (lighter + 0.05) / (darker + 0.05)


def test_labels_in_bars_can_be_read_in_light_and_in_dark() -> None:
    light, dark = CSS.split("@media (prefers-color-scheme:dark)", 1)
    schemes = [_colours(light), _colours(light) | _colours(dark.partition("}}")[0])]
    page = Page(to_html(decode_analysis()))
    classes = {str(a["class"]) for tag, a in page.tags if tag == "text"}
    assert classes and all(name.startswith("on-") for name in classes)
    labels = {group: _label_colour(group) for group in GROUPS}
    for scheme in schemes:
        for group, label in labels.items():
            assert _contrast(scheme[group], scheme[label]) >= 4.5
        assert _contrast(scheme["card"], scheme["fg"]) >= 4.5  # names beside the bars of ranks


def _label_colour(group: str) -> str:
    rule = next(r for r in re.findall(r"[^{}]+\{fill:[^}]+\}", CSS) if f".on-{group}" in r)
    found = re.search(r"var\(--([\w-]+)\)", rule)
    assert found is not None
    return found[1]


def test_wide_tables_scroll_by_themselves_and_words_stay_whole() -> None:
    page = Page(to_html(decode_analysis()))
    before = [page.tags[at - 1] for at, (tag, _) in enumerate(page.tags) if tag == "table"]
    assert before and all(one == ("div", {"class": "wide"}) for one in before)
    assert ".wide,.tracer-report pre{overflow-x:auto}" in CSS and "anywhere" not in CSS


def test_a_cost_that_is_not_known_is_left_out() -> None:
    steps = [Step("decode", {"ffn.projection": 2.0})] * 4
    unknown = Finding("sync.hidden", "info", "a read", 4, steps=(0, 1, 2, 3))
    words = Page(to_html(make_analysis(steps, findings=[unknown]))).words
    assert "in 4 of 4 steps" in words
    known = replace(unknown, cost_ns=4_000)
    words = Page(to_html(make_analysis(steps, findings=[known]))).words
    assert "cost 1.00 us a step, in 4 of 4 steps" in words

"""The ways through the explorer, driven by its keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.test_cpu_pauses import paused
from tests.tui.driving import SMALL, WIDE, Driver, driven
from tests.tui.samples import (
    NASTY,
    cpu_trace,
    decode_analysis,
    launches_only_trace,
    one_kernel_trace,
    partial_trace,
    rank_trace,
)
from tracer.analyzers import analyze
from tracer.tui import keys, screens
from tracer.tui.app import Left
from tracer.tui.look import Look

pytestmark = pytest.mark.asyncio
TABS = [entry.key for entry in screens.tabs()]


def here(driver: Driver) -> tuple[str, object]:
    view = driver.explorer.view
    assert view is not None
    return driver.explorer.current, view.place()


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_the_first_screen_says_cause_and_gain(size: tuple[int, int]) -> None:
    async with driven(decode_analysis(), size=size) as driver:
        assert "Decode" in driver.lines[3] or "decode" in driver.text
        row = driver.line_with("gap.compile")
        assert row.startswith(" >") and "200 us" in row and "-200 us" in row


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_from_each_finding_to_its_source_and_back_to_where_it_began(
    size: tuple[int, int],
) -> None:
    analysis = decode_analysis()
    async with driven(analysis, size=size) as driver:
        for number in range(len(analysis.findings)):
            await driver.press("b", *["down"] * number)
            began = here(driver)
            text = driver.text
            await driver.press("enter")
            assert driver.explorer.current == "finding"
            await driver.press("s")
            assert "SOURCE" in driver.text
            await driver.press("backspace")
            assert here(driver) == began
            assert driver.text == text


async def test_from_finding_to_timeline_to_source_and_back() -> None:
    async with driven(decode_analysis()) as driver:
        await driver.press("enter")
        assert "EVIDENCE" in driver.text and "Use a cache of fixed length" in driver.text
        detail = driver.text
        await driver.press("enter")
        assert driver.explorer.current == "timeline"
        assert "_scaled_dot_product_flash_attention" in driver.line_with("name")
        await driver.press("s")
        assert "weights = scores.softmax(-1)" in driver.text
        assert "> " in driver.line_with("def attention")
        await driver.press("backspace")
        assert driver.text == detail
        await driver.press("backspace")
        assert driver.explorer.current == "overview"


async def test_the_evidence_of_a_pause_is_the_pause() -> None:
    async with driven(analyze(paused().build()), keys=["5", "enter", "enter"]) as driver:
        assert driver.explorer.current == "timeline"
        assert "GAP 20" in driver.text and "after" in driver.text


async def test_a_step_opens_as_a_timeline_and_steps_follow_each_other() -> None:
    async with driven(decode_analysis(), keys=["2", "down", "enter"]) as driver:
        assert "Step 1 of 4" in driver.text
        await driver.press("}")
        assert "Step 2 of 4" in driver.text
        await driver.press("{", "{")
        assert "Step 0 of 4" in driver.text
        await driver.press("backspace")
        assert driver.explorer.current == "steps"
        assert driver.line_with(" >").split()[1] == "1"


async def test_jumps_from_kernel_to_launch_operator_module_and_back() -> None:
    async with driven(decode_analysis(), keys=["4", "enter"]) as driver:
        kernel = driver.text
        assert "KERNEL" in kernel
        await driver.press("l")
        assert "CALL" in driver.text and "cudaLaunchKernel" in driver.text
        await driver.press("o")
        assert "OPERATOR" in driver.text
        await driver.press("m")
        assert "MODULE" in driver.text
        await driver.press("backspace", "backspace", "backspace")
        assert driver.text == kernel


async def test_zoom_state_is_in_the_lanes_and_nothing_covers_them() -> None:
    async with driven(decode_analysis(), keys=["2", "enter"]) as driver:
        before = len([line for line in driver.lines if "│" in line])
        for key in ("+", "+", "right", "]", ".", "b", "-", "0"):
            await driver.press(key)
            lanes = [line for line in driver.lines if "│" in line]
            assert len(lanes) >= before - 1, key
        assert not driver.explorer._notifications


async def test_modules_fold_and_unfold_and_lead_to_kernels() -> None:
    async with driven(decode_analysis(), keys=["3"]) as driver:
        row = driver.line_with("layers.* ×")
        assert "× 2" in row
        await driver.press("down", "v")
        assert "layers.0" in driver.text or "  0  " in driver.text
        await driver.press("v")
        assert "layers.* × 2" in driver.text
        view = driver.explorer.view
        count = driver.text.count("\n")
        await driver.press("home", "enter")
        assert view is not None and driver.text.count("\n") == count
        assert "layers.*" not in driver.text
        await driver.press("enter")
        assert "layers.*" in driver.text


async def test_a_module_shows_where_its_code_stands() -> None:
    async with driven(decode_analysis(), keys=["3"], size=(160, 50)) as driver:
        assert "SOURCE" in driver.text and ">    10 def mlp" in driver.text
        await driver.press("down")
        assert "SOURCE" not in driver.text


async def test_kernels_are_searched_filtered_and_sorted() -> None:
    async with driven(decode_analysis(), keys=["4", "/"]) as driver:
        await driver.type("mlp_gemm_2")
        await driver.press("enter")
        assert "nvjet_mlp_gemm_2" in driver.line_with(" > ")
        await driver.press("f")
        await driver.type("role:attention")
        await driver.press("enter")
        assert "filter: role:attention" in driver.text
        assert "mlp_gemm" not in driver.text
        await driver.press("escape")
        assert "mlp_gemm" in driver.text
        sort = driver.lines[1]
        await driver.press(">")
        assert driver.lines[1] != sort
        await driver.press("r")
        assert "reversed" in driver.lines[1]


async def test_a_search_that_finds_nothing_here_says_where_it_would() -> None:
    async with driven(decode_analysis(), keys=["5", "/"]) as driver:
        await driver.type("nvjet_attn")
        await driver.press("enter")
        assert "Kernels 1" in driver.text
        await driver.press("n")
        assert driver.explorer.current == "kernels"
        assert "nvjet_attn_gemm" in driver.line_with(" > ")
        await driver.press("backspace")
        assert driver.explorer.current == "findings"


async def test_the_timeline_searches_names_in_time() -> None:
    async with driven(decode_analysis(), keys=["2", "enter", "/"]) as driver:
        await driver.type("flash_fwd")
        await driver.press("enter")
        assert "of 8" in driver.text and "flash_fwd" in driver.line_with("name")
        first = driver.explorer.message
        await driver.press("n")
        assert driver.explorer.message != first


async def test_checks_are_the_other_part_of_the_findings() -> None:
    async with driven(decode_analysis(), keys=["5", "tab"]) as driver:
        assert "no device counters were sampled" in driver.text
        await driver.press("tab")
        assert "gap.compile" in driver.text and "-200 us" in driver.text


async def test_parts_of_the_overview_are_reached_by_tab_and_lead_to_their_evidence() -> None:
    leads = {"phases": "steps", "steps": "timeline", "where": "timeline", "findings": "finding",
             "modules": "modules", "checks": "findings"}  # fmt: skip
    async with driven(decode_analysis(), size=(120, 60)) as driver:
        seen: dict[str, str] = {}
        for _ in range(8):
            await driver.press("tab")
            view = driver.explorer.view
            part = view.part  # type: ignore[union-attr]
            await driver.press("enter")
            seen[part] = driver.explorer.current
            await driver.press("backspace")
            assert driver.explorer.current == "overview"
        assert seen == leads


async def test_left_and_right_choose_a_step_of_the_chart() -> None:
    async with driven(decode_analysis(), keys=["left", "left", "left", "right"]) as driver:
        assert "step 1 (ProfilerStep#1)" in driver.text
        await driver.press("enter")
        assert "Step 1 of 4" in driver.text


@pytest.mark.parametrize("screen", [entry.key for entry in screens.SCREENS if entry.title])
@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_each_key_that_help_names_works_where_it_is_named(
    screen: str, size: tuple[int, int]
) -> None:
    number = str(TABS.index(screen) + 1)
    async with driven(decode_analysis(), size=size, keys=[number]) as driver:
        commands = [c for c in driver.explorer.commands() if c.keys and c.action != "screen"]
        await driver.press("?")
        view = driver.explorer.view
        assert view is not None
        text = " ".join(" ".join(row[0] for row in view.csv_rows()).split())
        await driver.press("escape")
        assert driver.explorer.current == screen
        for command in commands:
            assert command.help in text, command.action
            assert any(keys.can_do(place, command) for place in driver.explorer.places())


async def test_the_keys_of_the_timeline_do_what_they_say() -> None:
    async with driven(decode_analysis(), keys=["2", "down", "enter"]) as driver:
        for command in driver.explorer.commands():
            if command.action in ("quit", "screen", "help", "palette", "search", "export", "back"):
                continue
            for key in command.keys:
                await driver.press(key)
                assert driver.explorer.current == "timeline"


@pytest.mark.parametrize("screen", ["overview", "kernels", "modules", "findings", "steps"])
async def test_each_command_of_the_palette_has_the_effect_of_its_key(screen: str) -> None:
    skipped = ("quit", "screen", "palette", "copy", "export", "escape", "help")
    async with driven(decode_analysis(), keys=[str(TABS.index(screen) + 1)]) as driver:
        explorer, start = driver.explorer, here(driver)
        history = list(explorer.history)
        for command in explorer.commands():
            if not command.keys or command.action in skipped:
                continue
            await driver.press(command.keys[0])
            by_key = (explorer.current, driver.text)
            await begin_again(driver, start, history)
            await driver.press(":")
            await driver.type(f"{command.action.replace('_', ' ')}:")
            await driver.press("enter")
            assert (explorer.current, driver.text) == by_key, command.action
            await begin_again(driver, start, history)


async def begin_again(driver: Driver, start: tuple[str, object], history: list[Left]) -> None:
    """Back to where a test began, nothing remembered."""
    explorer = driver.explorer
    explorer.line.ask, explorer.message, explorer.history = None, "", list(history)
    explorer.open_view(start[0])
    view = explorer.view
    assert view is not None
    view.restore(start[1])
    await driver.settle()


async def test_numbers_open_screens_and_backspace_returns() -> None:
    async with driven(decode_analysis()) as driver:
        for number, key in enumerate(TABS, 1):
            await driver.press(str(number))
            assert driver.explorer.current == key
        for key in reversed(TABS[:-1]):
            await driver.press("backspace")
            assert driver.explorer.current == key


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (cpu_trace, "No GPU in this recording"),
        (launches_only_trace, "no device row"),
        (one_kernel_trace, "lonely_kernel"),
        (partial_trace, "partial"),
    ],
)
@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_recordings_that_lack_something_say_so_on_every_screen(
    make: object, words: str, size: tuple[int, int]
) -> None:
    analysis = analyze(make())  # type: ignore[operator]
    async with driven(analysis, size=size) as driver:
        seen = driver.text
        for number in range(1, len(TABS) + 1):
            await driver.press(str(number))
            seen += driver.text
            assert "Traceback" not in driver.text
        await driver.press("2", "enter")
        seen += driver.text
        assert words in seen
        if make is partial_trace:
            assert "partial" in driver.lines[-1]


async def test_ranks_of_many_recordings_and_changing_between_them() -> None:
    analyses = [analyze(rank_trace(rank)) for rank in range(6)]
    async with driven(*analyses, keys=["7"]) as driver:
        assert all(f"rank {rank}" in driver.text for rank in range(8))
        assert driver.text.count("no recording of it") == 2
        await driver.press("down", "down", "enter")
        assert driver.explorer.session.shown == 2
        assert "rank2.json" in driver.lines[0]
        await driver.press("backspace")
        assert driver.explorer.current == "ranks" and driver.explorer.session.shown == 0


async def test_nasty_names_on_every_screen() -> None:
    analysis = decode_analysis(names=NASTY)
    for look in (Look(), Look(ascii=True), Look(color=False)):
        for size in (SMALL, WIDE):
            async with driven(analysis, size=size, look=look) as driver:
                for key in (*"1234567", "4", "end", "enter", "s", "d"):
                    await driver.press(key)
                    for line in driver.lines:
                        assert not any(ord(c) < 32 or ord(c) == 0x7F for c in line)
                        assert "\u202e" not in line
                        assert not look.ascii or line.isascii()
                await driver.press("4", "home")
                assert "[red]not red[/red]" in driver.text


async def test_names_are_copied_whole() -> None:
    async with driven(decode_analysis(names=NASTY), keys=["4"]) as driver:
        await driver.press("/")
        await driver.type("kkkk")
        await driver.press("enter", "y")
        assert driver.explorer.clipboard == "k" * 400
        assert "sent to the terminal's clipboard (OSC 52): kkk" in driver.text
        assert "copied" not in driver.text


async def test_what_is_shown_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with driven(decode_analysis(), keys=["4"]) as driver:
        for kind in ("csv", "svg", "txt"):
            await driver.press("e")
            assert "svg or txt: csv" in driver.text
            await driver.type(kind)
            await driver.press("enter")
            assert "wrote" in driver.text
        await driver.press("e", "enter")
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["tracer-kernels-2.csv", "tracer-kernels.csv", "tracer-kernels.svg",
                       "tracer-kernels.txt"]  # fmt: skip
    rows = (tmp_path / "tracer-kernels.csv").read_text().splitlines()
    assert rows[0] == "role,name,library,how,calls,mean,total,share"
    assert len(rows) == len(decode_analysis().kernels) + 1
    assert "<svg" in (tmp_path / "tracer-kernels.svg").read_text()


async def test_an_export_that_cannot_be_written_says_so_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def fail(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", fail)
    async with driven(decode_analysis(), keys=["4", "e", "enter"]) as driver:
        assert "could not be written: Permission denied" in driver.text


async def test_any_size_and_back_keeps_the_cursor_and_cuts_no_key() -> None:
    async with driven(decode_analysis(), keys=["2", "enter", "+", "+", "right"]) as driver:
        view = driver.explorer.view
        cursor = view.timeline.viewport.cursor_ns  # type: ignore[union-attr]
        before = driver.text
        for width, height in ((80, 24), (60, 16), (40, 12), (200, 50), (99, 30)):
            await driver.resize(width, height)
            assert view.timeline.viewport.cursor_ns == cursor  # type: ignore[union-attr]
            assert all(len(line) <= width for line in driver.lines)
            if width >= 60:
                assert "? keys" in driver.lines[-1]
                for entry in driver.lines[-1].split("  ")[:-1]:
                    assert entry == entry.rstrip()
            else:
                assert "60x16 needed" in " ".join(driver.lines)
                assert "GPU" in driver.text
        await driver.resize(*WIDE)
        assert driver.text == before


async def test_the_same_facts_without_colour_in_ascii_and_light() -> None:
    analysis = decode_analysis()
    texts = []
    for look in (Look(), Look(color=False), Look(light=True)):
        async with driven(analysis, look=look, keys=["2", "enter"]) as driver:
            texts.append(driver.text)
            styles = {
                segment.style
                for strip in driver.explorer.screen._compositor.render_strips()
                for segment in strip
                if segment.style is not None
            }
            colours = {s.color for s in styles if s.color} | {
                s.bgcolor for s in styles if s.bgcolor
            }
            assert bool(colours) == look.color
    assert texts[0] == texts[1] == texts[2]
    async with driven(analysis, look=Look(ascii=True), keys=["2", "enter"]) as driver:
        assert driver.text.isascii()
        assert "GAP" in driver.text and "idle: l launch" in driver.text


async def test_the_theme_changes_and_changes_back() -> None:
    async with driven(decode_analysis(), keys=["4", ":"]) as driver:
        await driver.type("theme")
        await driver.press("enter")
        assert driver.explorer.look.light
        await driver.press(":")
        await driver.type("theme")
        await driver.press("enter")
        assert not driver.explorer.look.light


async def test_unattributed_kernels_stay_last_and_are_never_hidden_unasked() -> None:
    analysis = decode_analysis()
    kernels = analysis.kernels.copy()
    how = kernels["how"].astype(str)
    how.iloc[0] = "none"
    kernels["how"] = how.astype("category")
    async with driven(replace(analysis, kernels=kernels), keys=["4"]) as driver:
        name = str(kernels["name"].iloc[0])
        await driver.press("end")
        assert name in driver.line_with(" > ")
        await driver.press("f")
        await driver.type("zzz")
        await driver.press("enter")
        assert name in driver.text
        await driver.press("f")
        driver.explorer.press("ctrl+u", None)
        await driver.type("how:module")
        await driver.press("enter")
        assert name not in driver.text

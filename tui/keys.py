"""All commands: which key runs what. Footer, help and palette read this one table.

A command is there where the view (or the frame) has a method `do_<action>`; a method
`can_<action>` may say that it is not there now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Command:
    """One action. `keys`: as `Key.key` or its character; `shown`: how help names them; `rank`:
    place in the footer, 0 for not there."""

    action: str
    keys: tuple[str, ...]
    shown: str
    label: str
    help: str
    rank: int = 0


MOVING = "Moving"
LOOKING = "Looking for something"
TIMELINE = "Timeline"
PROGRAM = "Program"

SECTIONS: dict[str, tuple[Command, ...]] = {
    MOVING: (
        Command("enter", ("enter",), "Enter", "open", "open the selected line: its evidence", 1),
        Command("up", ("up", "k"), "Up k", "", "the line, or lane, above"),
        Command("down", ("down", "j"), "Down j", "move", "the line, or lane, below", 2),
        Command("page_up", ("pageup",), "PgUp", "", "a page up; on the timeline earlier"),
        Command("page_down", ("pagedown",), "PgDn", "", "a page down; on the timeline later"),
        Command("first", ("home",), "Home", "", "the first line; on the timeline its start"),
        Command("last", ("end",), "End", "", "the last line; on the timeline its end"),
        Command("next_part", ("tab",), "Tab", "next part", "the next part of the screen", 5),
        Command("previous_part", ("shift+tab",), "Shift+Tab", "", "the part before"),
        Command("back", ("backspace",), "Backspace", "back", "back to the exact place left", 4),
        Command("biggest", ("b",), "b", "biggest", "the biggest cost in view; again: the next", 6),
        Command("fold", ("v",), "v", "fold", "fold or unfold lanes or like modules", 7),
        Command("details", ("d",), "d", "details", "details of the selected line, on and off", 8),
    ),
    TIMELINE: (
        Command("left", ("left",), "Left", "", "a cell, a step or a column to the left"),
        Command("right", ("right",), "Right", "move", "a cell, a step or a column to the right", 2),
        Command("zoom_in", ("+", "="), "+", "zoom", "zoom in at the cursor", 3),
        Command("zoom_out", ("-", "_"), "-", "", "zoom out at the cursor"),
        Command("zoom_fit", ("0",), "0", "fit", "fit the step", 9),
        Command("previous_gap", ("[",), "[", "", "the gap before, of those that can be seen"),
        Command("next_gap", ("]",), "]", "gap", "the gap after, of those that can be seen", 4),
        Command("previous_kernel", (",",), ",", "", "the kernel before, on this stream"),
        Command("next_kernel", (".",), ".", "kernel", "the kernel after, on this stream", 5),
        Command("previous_step", ("{",), "{", "", "the step before"),
        Command("next_step", ("}",), "}", "step", "the step after", 10),
        Command("launch", ("l",), "l", "launch", "from work to its launch, and back", 6),
        Command("operator", ("o",), "o", "operator", "the operator around it", 8),
        Command("module", ("m",), "m", "module", "the module around it", 7),
        Command("source", ("s",), "s", "source", "the source line, on and off", 7),
        Command("pause", ("space",), "Space", "pause", "live: hold the screen, not the capture"),
    ),
    LOOKING: (
        Command("search", ("/",), "/", "search", "search full names in this screen", 11),
        Command("next_hit", ("n",), "n", "", "the next hit"),
        Command("previous_hit", ("N",), "N", "", "the hit before"),
        Command("filter", ("f",), "f", "filter",
                "show only rows with these words; how:… asks one column", 12),
        Command("sort_previous", ("<",), "<", "", "sort by the column to the left"),
        Command("sort_next", (">",), ">", "sort", "sort by the column to the right", 13),
        Command("reverse", ("r",), "r", "", "turn the order round"),
        Command("copy", ("y",), "y", "copy",
                "send the full name, advice or row to the terminal's clipboard", 22),
        Command("export", ("e",), "e", "export",
                "write what is shown to a CSV, SVG or text file", 23),
    ),
    PROGRAM: (
        Command("screen", tuple("123456789"), "1 … 9", "", "the screen of that number"),
        Command("escape", ("escape",), "Esc", "", "leave search, filter, help, details"),
        Command("help", ("?",), "?", "keys", "the keys that work here"),
        Command("palette", (":", "ctrl+p"), ": Ctrl+P", "commands", "all commands, by name", 20),
        Command("theme", (), "", "theme", "light or dark colours"),
        Command("quit", ("q", "ctrl+c"), "q Ctrl+C", "quit", "leave at once", 21),
    ),
}  # fmt: skip
COMMANDS: tuple[Command, ...] = tuple(c for group in SECTIONS.values() for c in group)
_MOST_IN_FOOTER = 9
_HELP = "? keys"


def available(command: Command, places: Iterable[object]) -> bool:
    """Whether one of these (a view, the frame) can do it now."""
    return any(can_do(place, command) for place in places)


def can_do(place: object, command: Command) -> bool:
    """Whether this place can do it now."""
    if not hasattr(place, f"do_{command.action}"):
        return False
    test = getattr(place, f"can_{command.action}", None)
    return test is None or bool(test())


def for_key(key: str, character: str | None) -> Iterator[Command]:
    """The commands of a key."""
    named = {key, character or key}
    yield from (command for command in COMMANDS if not named.isdisjoint(command.keys))


def footer_text(
    width: int, commands: Iterable[Command], labels: Mapping[str, str] = MappingProxyType({})
) -> str:
    """At most nine keys, whole ones, by use; `? keys` is always there. `labels`: what a screen
    calls an action; empty leaves it out."""
    ranked = sorted((c for c in commands if c.rank and c.label), key=lambda c: c.rank)
    chosen: list[str] = []
    for command in ranked:
        label = labels.get(command.action, command.label)
        if not label:
            continue
        entry = f"{_footer_key(command)} {label}"
        used = sum(len(text) + 2 for text in (*chosen, entry, _HELP))
        if len(chosen) < _MOST_IN_FOOTER - 1 and used <= width:
            chosen.append(entry)
    at = next((n for n, text in enumerate(chosen) if text.endswith(("commands", "quit"))), None)
    chosen.insert(len(chosen) if at is None else at, _HELP)
    return "  ".join(chosen)


def _footer_key(command: Command) -> str:
    both = {
        "down": "Up/Down",
        "right": "Left/Right",
        "zoom_in": "+/-",
        "next_gap": "[ ]",
        "next_kernel": ", .",
        "next_step": "{ }",
        "palette": ":",
        "quit": "q",
    }
    return both.get(command.action, command.shown)

"""The explorer: a frame around screens that read an `Analysis`.

This module and what it imports load before the first frame is drawn; tables, screens and the
libraries behind them load on the thread that reads the recording.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events
from textual.app import App, ComposeResult
from textual.filter import LineFilter
from textual.geometry import Size
from textual.screen import Screen

from tracer.tui import keys, screens
from tracer.tui.background import run_beside
from tracer.tui.following import INTERVAL_S, Following
from tracer.tui.look import Look
from tracer.tui.messages import (
    Ask,
    Compared,
    Crashed,
    Failed,
    Finished,
    Loaded,
    Newest,
    Prepared,
    Progress,
)
from tracer.tui.searching import Search
from tracer.tui.session import Comparison, Recording, Report, Session, Source
from tracer.tui.terminal import is_served, is_terminal, kept_terminal, look_for
from tracer.tui.typed_line import TypedLine
from tracer.tui.widgets.drawn import Colorless
from tracer.tui.widgets.frame import Footer, Header, Tab
from tracer.tui.widgets.loading import Loading
from tracer.tui.widgets.small import TooSmall

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.tui.model.lines import Target
    from tracer.tui.widgets.view import View

_MOST_HISTORY = 200


@dataclass(frozen=True)
class Left:
    """A place that was left, to come back to."""

    view: str
    recording: int
    place: object


class Frame(Screen[None]):
    """The one screen of Textual: header, a view, footer. All keys go through the table of keys."""

    BINDINGS: ClassVar[list[Any]] = []
    DEFAULT_CSS = "Frame { layers: base; }"

    def compose(self) -> ComposeResult:
        yield Header(id="header")
        yield Footer(id="footer")
        yield Loading(id="loading")
        yield TooSmall(id="small")

    def on_mount(self) -> None:
        cast(Explorer, self.app).begin()

    def on_resize(self, event: events.Resize) -> None:
        explorer = cast(Explorer, self.app)
        explorer.arrange()
        explorer.frame_changed()

    async def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        cast(Explorer, self.app).press(event.key, event.character)

    def on_paste(self, event: events.Paste) -> None:
        cast(Explorer, self.app).line.paste(event.text)


class Explorer(App[int]):
    """Opens recordings and shows them. `run()` returns the number of a signal that ended it."""

    ENABLE_COMMAND_PALETTE = False
    LEAST_WIDTH, LEAST_HEIGHT = 60, 16
    CSS = "Frame { background: black 0%; }"
    BINDINGS: ClassVar[list[Any]] = []
    ALLOW_SELECT = False

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        look: Look | None = None,
        newest: Callable[[], Analysis | None] | None = None,
        compare: Callable[[Session], Comparison | None] | None = None,
        watch_size: bool = False,
        clock: Callable[[], float] = time.monotonic,
        start: str = "overview",
    ) -> None:
        self.look = look_for(os.environ) if look is None else look
        self._colorless = Colorless()
        super().__init__()
        recordings = [Recording(source) for source in sources]
        self.session = Session(recordings, live=newest is not None)
        self.following = Following(self, newest)
        self.line = TypedLine(self)
        self.search = Search(self)
        self.compare = compare
        self.watch_size = watch_size
        self.printed: list[tuple[bool, str]] = []  # what was printed meanwhile: on stderr, the text
        self.clock = clock
        self.started_s = clock()
        self.message = ""
        self.current = start
        self.under = start  # the screen that help or the palette was opened over
        self.history: list[Left] = []
        self.crash: Exception | None = None
        self._views: dict[str, View] = {}
        self._tickets: dict[str, int] = {}
        self.pending: set[str] = set()  # views that are being worked out
        self._last_action = ""
        self._this_action = ""
        self.ended_by: int | None = None
        self.composed = False

    # Starting.

    def get_default_screen(self) -> Screen[None]:
        return Frame(id="_default")

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Colours are numbers of the 256 and pass as they are; without colour all go."""
        return [] if self.look.color else [self._colorless]

    def begin(self) -> None:
        """The frame is there: read what is to be shown."""
        self.composed = True
        self.arrange()
        if self.ended_by is not None:
            self.exit(128 + self.ended_by)  # the signal came before there was a loop
            return
        if self.following.live:
            self.frame.query_one(Loading).progress(Progress("", "waiting for the first step"))
            self.set_interval(INTERVAL_S, self.following.poll)
        else:
            run_beside(self, self._read_all)
        if self.watch_size:
            self.set_interval(2 * INTERVAL_S, self._look_at_size)

    def _look_at_size(self) -> None:
        """No signal tells a thread that the terminal was resized."""
        found = Size(*shutil.get_terminal_size())
        if found != self.frame.size:
            self.post_message(events.Resize(found, found))

    def _print(self, text: str, stderr: bool = False) -> None:
        """A program that runs beside the screen loses nothing it prints."""
        if self.is_headless:
            super()._print(text, stderr)
        else:
            self.printed.append((stderr, text))

    def _read_all(self) -> None:
        """Read every recording in order, on its own thread."""
        for number, recording in enumerate(self.session.recordings):
            if recording.analysis is not None:
                continue
            name = recording.name

            def report(stage: str, done: int = 0, total: int = 0, name: str = name) -> None:
                self.post_message(Progress(name, stage, done, total))

            report("reading")
            try:
                analysis = recording.source.read(report)
            except Exception as error:
                # The border to the readers: one file that cannot be read does not end the rest.
                self.post_message(Failed(number, error))
                continue
            self.post_message(Loaded(number, analysis))

    def on_progress(self, message: Progress) -> None:
        if self.is_composed:
            self.frame.query_one(Loading).progress(message)
            self.frame_changed()

    def on_loaded(self, message: Loaded) -> None:
        first = self.session.analysis is None
        self.session.recordings[message.number].analysis = message.analysis
        if first and self.is_composed:
            self.session.shown = message.number
            self.open_view(self.current)
        else:
            self._prepare_again(("ranks",))
        self._compare()
        self.frame_changed()

    def _compare(self) -> None:
        """Once every recording is read, put ranks beside each other."""
        session, compare = self.session, self.compare
        if compare is not None and session.settled and len(session.recordings) > 1:
            self.compare = None
            run_beside(self, lambda: Compared(compare(session)))

    def on_compared(self, message: Compared) -> None:
        self.session.comparison = message.comparison
        if message.comparison is not None:
            self._prepare_again(tuple(self._views))

    def on_failed(self, message: Failed) -> None:
        self.session.recordings[message.number].error = message.error
        if all(recording.error is not None for recording in self.session.recordings):
            self.crash = message.error
            self.exit(1)
            return
        self.say(str(message.error))
        self._prepare_again(("ranks",))
        self._compare()

    def on_crashed(self, message: Crashed) -> None:
        raise message.error

    def _handle_exception(self, error: Exception) -> None:
        """The caller of `run` gets the error; the screen is left first."""
        if self.crash is None:
            self.crash = error
        super()._handle_exception(error)

    def _print_error_renderables(self) -> None:
        """No traceback on the terminal: whoever ran the explorer says what went wrong."""
        self._exit_renderables.clear()

    # A capture that still runs.

    def on_newest(self, message: Newest) -> None:
        if self.following.wants(message.analysis):
            self._show_newest(message.analysis)
        self.frame_changed()

    def on_finished(self, message: Finished) -> None:
        self.following.end()
        self.session.live = False
        self._show_newest(message.analysis)
        self.say("the capture has ended")

    def _show_newest(self, analysis: Analysis) -> None:
        first = self.session.analysis is None
        self.session.recordings[0].analysis = analysis
        if first and self.is_composed:
            self.open_view(self.current)
        else:
            self._prepare_again(tuple(self._views))

    # Views.

    @property
    def frame(self) -> Frame:
        """The screen at the bottom, whatever lies over it."""
        return cast(Frame, self.screen_stack[0])

    @property
    def is_composed(self) -> bool:
        """Whether there is a frame to draw on: not before it is made, nor at the end, when its
        parts go first."""
        return self.composed and bool(self.screen_stack) and bool(self.frame.query(Header))

    @property
    def view(self) -> View | None:
        """The view that is shown."""
        return self._views.get(self.current)

    def view_of(self, key: str) -> View | None:
        """The view of that key, if it was opened."""
        return self._views.get(key)

    def open_view(self, key: str, item: object = None) -> None:
        """Show a view, made and worked out when it is needed for the first time."""
        self.current = key
        view = self._views.get(key)
        if view is None:
            view = screens.load(key)()
            self._views[key] = view
            view.wanted = item
            self.frame.mount(view)
            self._prepare(key)
        else:
            view.open_item(item)
        self.arrange()
        self.frame_changed()

    def arrange(self) -> None:
        """Show what belongs on the screen at this size, and nothing else."""
        if not self.is_composed:
            return
        small, frame = self.too_small, self.frame
        for key, view in self._views.items():
            view.display = key == self.current and not small
        frame.query_one(Loading).display = self.view is None and not small
        frame.query_one(TooSmall).display = small
        frame.query_one(Header).display = frame.query_one(Footer).display = not small
        frame.query_one(TooSmall).changed()

    def _prepare(self, key: str) -> None:
        ticket = self._tickets.get(key, 0) + 1
        self._tickets[key] = ticket
        self.pending.add(key)
        prepare, session, look = type(self._views[key]).prepare, self.session, self.look
        run_beside(self, lambda: Prepared(key, ticket, prepare(session, look)))

    def _prepare_again(self, keys: Iterable[str]) -> None:
        for key in keys:
            if key in self._views:
                self._prepare(key)

    def on_prepared(self, message: Prepared) -> None:
        view = self._views.get(message.view)
        if view is not None and self._tickets[message.view] == message.ticket:
            self.pending.discard(message.view)
            view.receive(message.model)
            self.frame_changed()

    def frame_changed(self) -> None:
        """Draw header and footer again."""
        if self.is_composed:
            self.frame.query_one(Header).changed()
            self.frame.query_one(Footer).changed()

    # Going about.

    def leave(self) -> None:
        """Remember the place that is left."""
        if self.view is not None:
            left = Left(self.current, self.session.shown, self.view.place())
            self.history = [*self.history[-_MOST_HISTORY:], left]

    def follow(self, target: Target) -> None:
        """Go where a line leads; Backspace comes back."""
        self.leave()
        self.open_view(target.screen, target.item)

    def open_number(self, number: int) -> None:
        """The screen of that number in the header."""
        tabs = screens.tabs()
        if 1 <= number <= len(tabs) and self.session.analysis is not None:
            self.leave()
            self.open_view(tabs[number - 1].key)

    def do_back(self) -> None:
        if not self.history or self.view is None:
            return
        left = self.history.pop()
        if left.recording != self.session.shown:
            self.show_recording(left.recording)
        self.open_view(left.view)
        self._views[left.view].return_to(left.place)
        self.frame_changed()

    def can_back(self) -> bool:
        return bool(self.history)

    def show_recording(self, number: int) -> None:
        """Show another of the open recordings on every screen."""
        if self.session.recordings[number].analysis is None:
            self.say(f"{self.session.recordings[number].name} is not read yet")
            return
        self.session.shown = number
        for key in [key for key in self._views if key != "ranks"]:
            self._views.pop(key).remove()
            self.pending.discard(key)
        self.frame_changed()

    # Keys.

    def press(self, key: str, character: str | None) -> None:
        """A key: for the line that is being typed, else for a command."""
        if self.line.ask is not None and key != "ctrl+c":
            self.line.press(key, character)
            return
        for command in keys.for_key(key, character):
            if command.action == "screen":
                self.open_number(int(character or "0"))
            elif self.do(command):
                return

    def do(self, command: keys.Command) -> bool:
        """Run a command in the first place that can do it; False where none can."""
        self._last_action, self._this_action = self._this_action, command.action
        self.message = ""
        for place in self.places():
            if keys.can_do(place, command):
                getattr(place, f"do_{command.action}")()
                self.frame_changed()
                return True
        return False

    def places(self) -> list[object]:
        """Who can do a command: the view, then the frame."""
        others: list[object] = [self, self.search, self.following]
        return others if self.view is None or self.too_small else [self.view, *others]

    def repeated(self, action: str) -> bool:
        """Whether the command before this one was the same."""
        return self._last_action == action

    def commands(self) -> list[keys.Command]:
        """The commands that work here."""
        places = self.places()
        return [c for c in keys.COMMANDS if c.action == "screen" or keys.available(c, places)]

    def ask(self, ask: Ask) -> None:
        """Let the user type a line."""
        self.line.begin(ask)

    def footer_keys(self, width: int) -> str:
        labels = {} if self.view is None else self.view.LABELS
        return keys.footer_text(width, self.commands(), labels)

    # Copy, export, help, theme, end.

    def copy(self, text: str) -> None:
        """Send text to the clipboard of the terminal, which does not say whether it takes it."""
        self.copy_to_clipboard(text)
        self.message = f"sent to the terminal's clipboard (OSC 52): {text}"
        self.frame_changed()

    def do_export(self) -> None:
        self.ask(Ask("export", "export as csv, svg or txt: ", "csv", selected=True))

    def can_export(self) -> bool:
        return self.view is not None and self.view.model is not None

    def export(self, kind: str) -> None:
        """Write what is shown to a file, and say where."""
        from tracer.tui.export import export_view

        view = self.view
        assert view is not None
        self.message = ""
        self.say(export_view(self, view, kind.strip().lower()))

    def do_help(self) -> None:
        if self.current != "help":
            self._open_over("help")

    def do_palette(self) -> None:
        if self.current != "palette" and self.session.analysis is not None:
            self._open_over("palette")
            self.ask(Ask("palette", ": "))

    def _open_over(self, key: str) -> None:
        self.leave()
        self.under = self.current if self.current not in ("help", "palette") else self.under
        self.open_view(key)
        self._prepare(key)

    def can_help(self) -> bool:
        return self.session.analysis is not None

    def do_theme(self) -> None:
        """Light or dark: colours stand in what is worked out, so that is done again."""
        self.look = replace(self.look, light=not self.look.light)
        self._prepare_again(tuple(self._views))
        self.frame_changed()

    def do_escape(self) -> None:
        if self.current in ("help", "palette"):
            self.do_back()

    def do_quit(self) -> None:
        self.exit(0)

    def end_by_signal(self, number: int) -> None:
        """A signal asked the program to end; called between two instructions of Python."""
        self.ended_by = number
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.exit, 128 + number)

    def end_from_outside(self) -> None:
        """End it from another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.exit, 0)

    # Words of the frame.

    @property
    def too_small(self) -> bool:
        """Whether the terminal is too small for any screen."""
        width, height = self.frame.size
        return width < self.LEAST_WIDTH or height < self.LEAST_HEIGHT

    def say(self, text: str) -> None:
        """A message above the footer; it covers nothing."""
        self.message = text
        self.frame_changed()

    def tabs(self) -> list[Tab]:
        """The screens of the header; the one that is shown is marked."""
        entries = screens.tabs()
        shown = self.under if self.current in ("help", "palette") else self.current
        here = screens.entry(shown).tab
        return [Tab(n, e.title, e.key == here) for n, e in enumerate(entries, 1)]

    def title_words(self) -> str:
        """The last part of the recording's path."""
        name = self.session.recording.name
        return name.rstrip("/").rpartition("/")[2] or name

    def state_words(self) -> str:
        """The second line of the header: a running capture, then the screen's own words."""
        words = [self.following.words(), "" if self.view is None else self.view.state_words()]
        return self.look.separator.join(word for word in words if word)

    @property
    def is_partial(self) -> bool:
        """Whether something is missing that the reader must always see said."""
        analysis = self.session.analysis
        return analysis is None or analysis.integrity_status != "complete"

    def status_words(self) -> str:
        """The right end of the footer: whether the recording is whole, and the profiler's cost."""
        analysis = self.session.analysis
        if analysis is None:
            return "reading"
        words = [analysis.integrity_status]
        if analysis.observer is not None:
            words.append(f"profiler {100 * (analysis.observer.inflation_ratio - 1):+.0f} %")
        return self.look.separator.join(words)


def open_analysis(analysis: Analysis, *, name: str | None = None) -> None:
    """Show one analysis until the user leaves; the terminal is as before afterwards."""
    title = name or analysis.trace.meta.path or "recording"
    run_explorer(Explorer([Source(title, lambda report: analysis)]))


def open_live(newest: Callable[[], Analysis | None], *, name: str = "live capture") -> None:
    """Show a capture that still runs. `newest` returns what is known by now (None: nothing new);
    it is called at most four times a second, never twice at once, on a thread of its own."""
    run_explorer(Explorer([Source(name, _never)], newest=newest))


def _never(report: Report) -> Analysis:
    raise NotImplementedError("a live capture is asked for its newest state, not read")


def run_explorer(explorer: Explorer, *, mouse: bool = True) -> int:
    """Run it on this terminal; returns the exit status and raises what made it end."""
    from tracer.errors import UsageError

    if not is_served(os.environ) and not is_terminal():
        raise UsageError(
            "the explorer needs a terminal to draw on; `tracer report PATH` prints the same facts"
        )
    with kept_terminal(explorer.end_by_signal):
        status = explorer.run(mouse=mouse)
    for stderr, text in explorer.printed:
        (sys.stderr if stderr else sys.stdout).write(text)
    if explorer.crash is not None:
        raise explorer.crash
    return status or 0

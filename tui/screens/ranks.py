"""Ranks: wait by rank and step, and which of the open recordings the other screens show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from tracer.tui.look import Look
from tracer.tui.model.lines import Line
from tracer.tui.model.places import RecordingNumber
from tracer.tui.model.ranks import RankMap, build_ranks, path_tail, rank_lines
from tracer.tui.session import Session
from tracer.tui.widgets.lines_view import LinesView


class RanksView(LinesView):
    KEY: ClassVar[str] = "ranks"
    TITLE: ClassVar[str] = "Ranks"
    LABELS: ClassVar[Mapping[str, str]] = {"enter": "show"}
    WORDS: ClassVar[str] = (
        "One row for each recording, a digit for each step: how many tenths of it went into "
        "waiting for the other ranks. Enter shows that recording on all screens. A row of ? is a "
        "rank without a recording, and why."
    )

    @staticmethod
    def prepare(session: Session, look: Look) -> RankMap:
        return build_ranks(session)

    def make_lines(self, width: int) -> Sequence[Line]:
        return rank_lines(self.look, self.model, width)

    def show_item(self, item: object) -> None:
        if isinstance(item, RecordingNumber):
            self.explorer.show_recording(item.number)

    def do_enter(self) -> None:
        line = self.lines.selected
        if line is not None and line.target is not None:
            item = line.target.item
            assert isinstance(item, RecordingNumber)
            self.explorer.leave()
            self.explorer.show_recording(item.number)
            self.explorer.open_view("overview")

    def do_biggest(self) -> None:
        """The rank whose digits sum to the most; again: the next."""
        totals = [row.total_ns or 0 for row in self.model.rows if row.number >= 0]
        ranked = sorted(range(len(totals)), key=lambda at: -totals[at])
        if ranked:
            again = self.explorer.repeated("biggest") and self.lines.at in ranked
            at = (ranked.index(self.lines.at) + 1) % len(ranked) if again else 0
            self.lines.at = ranked[at]
            self.changed()

    def state_words(self) -> str:
        session = self.explorer.session
        read = sum(recording.analysis is not None for recording in session.recordings)
        words = f"Ranks: {read} of {len(session.recordings)} recordings read"
        words = f"{words}{self.look.separator}shown: "
        return words + path_tail(session.recording.name, max(self.size.width - len(words) - 1, 8))

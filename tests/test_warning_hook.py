"""The hook on warnings: others see what it leaves, and nothing when it is gone."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tracer.collectors.warning_hook import Warned, listen


def test_what_is_taken_is_shown_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    seen: list[Warned] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: shown.append(str(message)))
    before = warnings.showwarning

    def takes(warned: Warned) -> bool:
        seen.append(warned)
        return warned.text == "ours"

    undo = listen(takes)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for text in ("ours", "theirs"):
            warnings.warn(text, RuntimeWarning, stacklevel=1)
    undo()
    assert shown == ["theirs"]
    assert seen == [Warned(text, RuntimeWarning, __file__) for text in ("ours", "theirs")]
    assert warnings.showwarning is before


def test_a_hook_put_over_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    undo = listen(lambda warned: True)

    def over(*shown: Any) -> None: ...

    warnings.showwarning = over  # type: ignore[assignment]
    undo()
    assert warnings.showwarning is over

"""What was meant by a word that is not known."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from typing import NoReturn

_CHOICE = re.compile(r"invalid choice: '?([^' ]*)'? .*\(choose from (.*)\)", re.S)


def hint(word: str, known: Iterable[str]) -> str:
    """` (did you mean report?)`; empty where nothing is near."""
    import difflib

    near = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {near[0]}?)" if near else ""


class Parser(argparse.ArgumentParser):
    """A parser that says which of the choices was meant."""

    def error(self, message: str) -> NoReturn:
        """End with the usage, the message and the choice that is near."""
        found = _CHOICE.search(message)
        near = hint(found[1], re.findall(r"[\w./-]+", found[2])) if found else ""
        super().error(message + near)

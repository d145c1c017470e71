"""Names from a recording, made safe to show and short enough to fit.

A name is data: control characters become symbols, and nothing in it moves the cursor, reorders
the line or is read as markup.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len, get_character_cell_size

from tracer.findings import Where

ELLIPSIS = "…"
# Joiners inside words and emoji of many scripts: they move nothing.
_HARMLESS_FORMATS = frozenset("\u200c\u200d")
_LEFT_TO_RIGHT_MARK = "\u200e"
_RIGHT_TO_LEFT = frozenset(("R", "AL", "AN"))
_NOISE = re.compile(
    r"\bvoid |\bc10::|\bat::native::|\bat::cuda::|\bat::|\bbinary_internal::"
    r"|\(anonymous namespace\)::|<unnamed>::"
)
# The arguments of the innermost function in a name with lambdas, and the lambdas themselves.
_ARGUMENTS = re.compile(r"(?<=\S)\([^()]*\)(?: const)?")
_LAMBDA = re.compile(r"::\{lambda#?\d*\}|::operator\b(?: const)?")
_DEEPEST_ARGUMENTS = 6
_CLOSING = re.compile(r"\s+>")
_PLAIN = re.compile(r"[\x20-\x7e]*\Z")


def inert(text: str) -> str:
    """The text with every character that is not visible replaced by a symbol."""
    if _PLAIN.match(text):
        return text
    shown = "".join(_symbol(c) for c in text)
    # Without the mark, a terminal that knows right-to-left text would move the numbers after it.
    if any(unicodedata.bidirectional(c) in _RIGHT_TO_LEFT for c in shown):
        return shown + _LEFT_TO_RIGHT_MARK
    return shown


def _symbol(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    category = unicodedata.category(character)
    if category == "Cf" and character in _HARMLESS_FORMATS:
        return character
    return "\ufffd" if category in ("Cc", "Cf", "Cs", "Zl", "Zp", "Cn") else character


def ascii_only(text: str) -> str:
    """The text for a terminal that shows ASCII alone."""
    plain = text.replace(ELLIPSIS, "~").replace(_LEFT_TO_RIGHT_MARK, "")
    return plain.encode("ascii", "backslashreplace").decode("ascii")


def cut_middle(text: str, width: int) -> str:
    """The text in at most `width` cells; what does not fit goes from its middle."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    tail_width = (width - 1) // 2
    tail = _take(text[::-1], tail_width)[::-1]
    return _take(text, width - 1 - cell_len(tail)) + ELLIPSIS + tail


def _take(text: str, width: int) -> str:
    used = 0
    for position, character in enumerate(text):
        used += get_character_cell_size(character)
        if used > width:
            return text[:position]
    return text


def short_kernel(name: str) -> str:
    """A kernel's name without return type, arguments and what tells nothing.

    The function, functor, dtype and tile stay.
    """
    short = _NOISE.sub("", _without_arguments(name))
    for _ in range(_DEEPEST_ARGUMENTS if "::{lambda" in short else 0):
        short = _ARGUMENTS.sub("", short)
    short = _LAMBDA.sub("", short)
    return _CLOSING.sub(">", short).strip() or name


def _without_arguments(name: str) -> str:
    """Cut a trailing `(...)` that closes at the end of the name and is no part of a template."""
    end = len(name)
    if name.endswith(" const"):
        end -= len(" const")
    if not name[:end].endswith(")"):
        return name
    depth = 0
    for position in range(end - 1, -1, -1):
        depth += (name[position] == ")") - (name[position] == "(")
        if depth == 0:
            # A space before it: words of the profiler, as in `Memcpy HtoD (Pinned -> Device)`.
            return name[:position] if position and name[position - 1] != " " else name
    return name


def fit_names(
    names: Sequence[str], width: int, identities: Sequence[str] | None = None
) -> list[str]:
    """Each name in at most `width` cells, no two different ones alike: those get `#1`, `#2`.

    `identities` tell different things with one name apart.
    """
    fitted = [cut_middle(name, width) for name in names]
    meanings: dict[str, list[str]] = {}
    rows = list(zip(names, fitted, identities or names, strict=True))
    for _, short, identity in rows:
        known = meanings.setdefault(short, [])
        if identity not in known:
            known.append(identity)
    return [
        short
        if len(meanings[short]) == 1
        else _numbered(name, meanings[short].index(identity) + 1, width)
        for name, short, identity in rows
    ]


def _numbered(name: str, number: int, width: int) -> str:
    mark = f"#{number}"
    return cut_middle(name, max(width - len(mark), 1)) + mark


def where_text(where: Where) -> str:
    """`sample.py:88 pick, module lm_head, operator aten::item`; empty when nothing is known."""
    parts: list[str] = []
    if where.file is not None:
        line = f":{where.line}" if where.line is not None else ""
        function = f" {where.function}" if where.function else ""
        parts.append(f"{where.file}{line}{function}")
    elif where.function:
        parts.append(where.function)
    if where.module:
        parts.append(f"module {where.module}")
    if where.operator:
        parts.append(f"operator {where.operator}")
    return inert(", ".join(parts))

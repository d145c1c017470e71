"""Names of spans: short enough for a row of a viewer, with few distinct values."""

from __future__ import annotations

import re

from tracer.analysis import BUCKETS

_TEMPLATE_TAIL = re.compile(r"[<(].*$", re.S)
_RETURN_TYPE = re.compile(r"^(void|static|auto|__global__)\s+")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\(anonymous\)::")
_SHORT_CHARACTERS = 80


def short_kernel_name(name: str) -> str:
    """The function's own name: without return type, namespaces, template and call arguments."""
    bare = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", name.strip()))
    head = _TEMPLATE_TAIL.sub("", bare).rstrip()
    short = head.rpartition("::")[2] or head
    # What is left of a name that begins with a bracket, or that is a sentence, says nothing.
    return (short or bare)[:_SHORT_CHARACTERS] or "(no name)"


def bucket_name(bucket: int) -> str:
    """`attention core`; for a part that repeats its group's word, the part alone."""
    group, part = BUCKETS[bucket]
    return f"{group} {part}"

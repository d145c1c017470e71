"""Names of spans: short enough for a row of a viewer, with few distinct values."""

from __future__ import annotations

import re

from tracer.analysis import BUCKETS

_TEMPLATE_TAIL = re.compile(r"[<(].*$", re.S)
_RETURN_TYPE = re.compile(r"^(void|static|auto|__global__)\s+")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\(anonymous\)::")
_SHORT_CHARACTERS = 80
# Functions that apply another one, which their first template arguments name.
_APPLIES = re.compile(r"^(\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel)$")
_APPLIED = re.compile(
    r"\b(?:CUDAFunctor(?:On[A-Z][a-z]+)?_(\w+)|launch_(\w+)"
    r"|(?!gpu_|[AB]?UnaryFunctor|BinaryFunctor)"
    r"(\w+?)(?:_?[Ff]unctor|Ops|CUDAKernelImpl|_kernel(?:_cuda|_impl)?)\b)"
)
_WRAPS = re.compile(r"^Kernel2?$")  # CUTLASS: the one template argument is the kernel
_FIRST_WORD = re.compile(r"(\w+)")


def short_kernel_name(name: str) -> str:
    """The function's own name: without return type, namespaces, template and call arguments; of
    one that applies another, such as ATen's `reduce_kernel`, what it applies as well."""
    bare = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", name.strip()))
    head = _TEMPLATE_TAIL.sub("", bare).rstrip()
    short = head.rpartition("::")[2] or head
    # What is left of a name that begins with a bracket, or that is a sentence, says nothing.
    named = _with_applied(short, bare[len(head) :]) or bare
    return named[:_SHORT_CHARACTERS] or "(no name)"


def _with_applied(short: str, arguments: str) -> str:
    """`reduce_kernel: sum`."""
    applied = _APPLIED if _APPLIES.match(short) else _FIRST_WORD if _WRAPS.match(short) else None
    found = applied.search(arguments) if applied else None
    return f"{short}: {found[found.lastindex or 0]}" if found else short


def bucket_name(bucket: int) -> str:
    """`attention core`; for a part that repeats its group's word, the part alone."""
    group, part = BUCKETS[bucket]
    return f"{group} {part}"

"""Phase and tokens of steps that neither names, shapes nor engines tell: by their kernels.

Only what kernels prove: attention kernels made for one new token a sequence, and kernels that run
one block a token.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, lookup, take
from tracer.analyzers.names.kernel_table import KernelName
from tracer.analyzers.steps.finder import HostStep

_DECODING = re.compile(
    r"(?<!en)(?<!en_)decod(e|ing)|paged_attention_(v[12]|ll4mi)|masked_multihead|mmha|xqa|ForGen"
    r"|unified_attention_3d|kernel_stage1|mla_splitkv|splitkv_mla",
    re.I,
)
# FlashInfer runs its batched prefill kernel for decode too, on tensor cores.
_PREFILLING = re.compile(r"(?<!flashinfer::Batch)prefill|PersistentContext|context_attention", re.I)
_TILE = re.compile(r"^nvjet_(?:sm\d+_)?[a-z]+_(\d+)x(\d+)_")
_FEW_TOKENS = 16
# Kernels that most libraries launch with one block for each token; ggml's have one for so many
# elements, or for each head.
_BLOCK_A_TOKEN = ("ROPE", "CACHE", "GLU", "NORM", "NORM_ADD")
_NO_BLOCK_A_TOKEN = ("ggml",)


@dataclass(frozen=True)
class _Seen:
    """What can be asked of the rows of a step. Arrays are aligned with the work rows."""

    work: Work
    bucket: NDArray[np.int16]
    blocks: Longs  # of the launch grid; -1 unknown


def phases_by_kernels(
    work: Work, out: Attribution, steps: Sequence[HostStep], work_step: Longs
) -> list[HostStep]:
    """The steps, with phase and tokens where kernels prove what was not known."""
    open_steps = [i for i, s in enumerate(steps) if not s.phase or s.tokens == NONE]
    if work.cpu_only or not open_steps:
        return list(steps)
    seen = _Seen(work, out.bucket, _blocks(work))
    order = np.argsort(work_step, kind="stable")
    bounds = np.searchsorted(work_step[order], np.arange(len(steps) + 1))
    rows = {i: order[bounds[i] : bounds[i + 1]] for i in open_steps}
    usual = Counter(rows[i].size for i in open_steps)
    return [
        _told(seen, step, rows[i], usual[rows[i].size] > 1) if i in rows else step
        for i, step in enumerate(steps)
    ]


def _told(seen: _Seen, step: HostStep, rows: Longs, repeated: bool) -> HostStep:
    phase = step.phase or _phase(seen, rows, repeated)
    tokens = step.tokens if step.tokens != NONE else _tokens(seen, rows)
    return replace(step, phase=phase, tokens=tokens)


def _blocks(work: Work) -> Longs:
    table = work.trace.table("geometry")
    return take(table["blocks"].to_numpy(), lookup(table["event"].to_numpy(), work.event))


def _names(seen: _Seen, rows: Longs, bucket: tuple[str, str]) -> list[KernelName]:
    """The distinct kernels of a bucket."""
    inside = rows[seen.bucket[rows] == BUCKET_CODE[bucket]]
    return [seen.work.names[code] for code in np.unique(seen.work.name_code[inside]).tolist()]


def _phase(seen: _Seen, rows: Longs, repeated: bool) -> str:
    cores = [n for n in _names(seen, rows, ("attention", "core")) if n.token.startswith("CORE")]
    decoding = any(_DECODING.search(core.name) for core in cores)
    prefilling = any(_PREFILLING.search(core.name) for core in cores)
    if decoding or prefilling:
        return "mixed" if decoding and prefilling else "decode" if decoding else "prefill"
    cached = _names(seen, rows, ("attention", "kv_cache"))
    return "decode" if cached and repeated and _few_tokens(seen, rows) else ""


def _few_tokens(seen: _Seen, rows: Longs) -> bool:
    """Whether every projection of the layers was computed by a kernel for a few rows."""
    names = [
        name
        for group in ("attention", "ffn")
        for name in _names(seen, rows, (group, "projection"))
        if name.token == "GEMM"
    ]
    return bool(names) and all(_for_few_rows(name) for name in names)


@lru_cache(maxsize=4096)
def _for_few_rows(name: KernelName) -> bool:
    tile = _TILE.match(name.name)
    return name.gemv or (tile is not None and min(map(int, tile.groups())) <= _FEW_TOKENS)


def _tokens(seen: _Seen, rows: Longs) -> int:
    """The number of blocks on which two kinds of kernels agree that run one block a token."""
    names, codes = seen.work.names, seen.work.name_code
    agreed: Counter[int] = Counter()
    for code in np.unique(codes[rows]).tolist():
        name = names[code]
        of_tokens = name.token in _BLOCK_A_TOKEN and name.library not in _NO_BLOCK_A_TOKEN
        if of_tokens and not name.fused_ops:
            blocks = np.unique(seen.blocks[rows[codes[rows] == code]])
            agreed.update(blocks.tolist() if blocks.size == 1 and blocks[0] > 0 else ())
    best = agreed.most_common(1)
    return best[0][0] if best and best[0][1] > 1 else NONE

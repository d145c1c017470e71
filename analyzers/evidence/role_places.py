"""What modules are that no name gives away: by what ran in them, and by their place in a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.evidence.role_words import (
    CONVOLUTION,
    FFN_LINEAR,
    is_attention_linear,
    last_word,
)
from tracer.analyzers.facts.modules import ModuleTree
from tracer.analyzers.intervals import NONE

_MIXING = ("attention", "mixer")
# Classes that hold anything.
_ANYTHING = frozenset({"", "Sequential", "ModuleList", "ModuleDict", "Module", "Linear"})


@dataclass(frozen=True)
class Seen:
    """What ran in modules themselves. cores: those in which an attention core did, and the event of
    its first work; alone: the role that its own work gives a module without others in it; products:
    those that computed one as a linear layer does; convolved: those that ran a convolution; first:
    the event of their first work, or where compiled code left none, a place between two events."""

    cores: Mapping[int, int] = field(default_factory=dict)
    alone: Mapping[int, str] = field(default_factory=dict)
    products: frozenset[int] = frozenset()
    convolved: frozenset[int] = frozenset()
    first: Mapping[int, float] = field(default_factory=dict)


@dataclass
class Places:
    """Gives roles by place. `own`: the role of each module so far, which it changes."""

    tree: ModuleTree
    own: list[str]
    children: list[list[int]]
    seen: Seen
    told: dict[int, str] = field(default_factory=dict)  # roles by what ran in a module alone
    _linears: dict[int, int] = field(default_factory=dict)

    def alone_by_evidence(self) -> None:
        """A module without others in it is what it computes, where no name tells more."""
        for row, role in self.seen.alone.items():
            if self.own[row] == "container" and not self.children[row]:
                self.own[row] = role
                self.told[row] = role

    def attention_by_evidence(self) -> None:
        """An attention core ran in a module that no name gives away: the module is attention, or
        the first around it that has linear layers; where those of an FFN are among them, it is a
        layer, as is one that holds an attention block (a fused form of the whole layer ran)."""
        for row, core in self.seen.cores.items():
            around = self.tree.ancestors(row)
            if any(self.own[a] in _MIXING for a in around):
                continue
            block = self._with_linears(around)
            if block != NONE:
                whole = self._parted(block, core)
                self.own[block] = "layer" if whole else "attention"
                self._widen(block)

    def _with_linears(self, around: list[int]) -> int:
        """The first of these modules that has linear layers, within the layer; the innermost where
        none has; -1 for none."""
        for row in around:
            if any(self.own[kid] in _MIXING for kid in self.children[row]):
                return NONE
            repeated = row in self._repeated
            if any(self.own[kid] == "linear" for kid in self.children[row]) or (
                not repeated and self._count(row)
            ):
                return row
            if repeated:
                break
        return around[0] if around[0] not in self._repeated else NONE

    def _widen(self, block: int) -> None:
        """Around what makes queries, keys and values can stand what also holds the one linear
        layer behind the core."""
        while self.own[block] == "attention" and block not in self._repeated:
            around = int(self.tree.parent[block])
            if around == NONE or around in self._repeated or self.own[around] != "container":
                return
            if self._count(around) - self._count(block) > 1:
                return
            self.own[block], self.own[around], block = "container", "attention", around

    @cached_property
    def _first(self) -> NDArray[np.float64]:
        """The first range of each module, or where it has none, as in compiled code, its first
        work; -1 where neither was recorded."""
        first = self.tree.first_event.astype(np.float64)
        without = first == NONE
        for row, event in self.seen.first.items():
            for above in self.tree.ancestors(row):
                if without[above] and (first[above] == NONE or event < first[above]):
                    first[above] = event
        return first

    @cached_property
    def _repeated(self) -> frozenset[int]:
        """Numbered modules with others of their class beside them: layers."""
        beside: dict[tuple[int, str, str], list[int]] = {}
        for row, path in enumerate(self.tree.paths):
            parent, _, name = path.rpartition(".")
            if name.isdigit() and self.children[row]:
                key = int(self.tree.parent[row]), parent, self.tree.types[row]
                beside.setdefault(key, []).append(row)
        return frozenset(row for rows in beside.values() if len(rows) > 1 for row in rows)

    def _count(self, row: int) -> int:
        """Linear layers in a module."""
        if row not in self._linears:
            own = self.own[row] == "linear" or row in self.seen.products
            self._linears[row] = own + sum(self._count(kid) for kid in self.children[row])
        return self._linears[row]

    def _parted(self, row: int, core: int) -> bool:
        """Whether linear layers written side by side are an attention's and an FFN's; each then has
        its role. Their names tell, or the norm that stands between them behind the core, or that
        some make a perceptron of their own."""
        kids = self.children[row]
        perceptrons = [kid for kid in kids if self._is_perceptron(kid)]
        linears = [kid for kid in kids if self.own[kid] == "linear"]
        feed = [k for k in linears if FFN_LINEAR.search(last_word(self.tree, k))]
        if perceptrons:
            feed = [*perceptrons, *(feed if len(feed) < len(linears) else [])]
        elif len(feed) in (0, len(linears)):
            first = self._first
            norms = [k for k in kids if self.own[k] == "norm" and float(first[k]) > core]
            feed = self._behind_norm(linears, norms)
        for kid in [*linears, *perceptrons] if feed else ():
            self.own[kid] = "ffn" if kid in feed else "attention"
        return bool(feed)

    def _is_perceptron(self, row: int) -> bool:
        """A block that no name gives away, of two linear layers or more with an activation."""
        if self.own[row] not in ("container", "ffn"):
            return False
        inside = [self.own[kid] for kid in self.children[row]]
        return self.own[row] == "ffn" or (inside.count("linear") >= 2 and "activation" in inside)

    def _behind_norm(self, linears: list[int], norms: list[int]) -> list[int]:
        """The linear layers that run behind a norm which two or more of them, that of the
        attention's result among these, and nothing else of theirs run before; none where no norm
        parts them so."""
        first = self._first
        for norm in sorted(norms, key=lambda row: float(first[row])):
            before = [k for k in linears if float(first[k]) < float(first[norm])]
            behind = [k for k in linears if float(first[k]) > float(first[norm])]
            if len(before) >= 2 and len(behind) >= 2:
                return behind
        return []

    def ffn_by_place(self) -> None:
        """Beside an attention block, whatever else has linear layers is the layer's FFN."""
        for row, kids in enumerate(self.children):
            if self.own[row] in ("container", "ffn") and any(self.own[k] in _MIXING for k in kids):
                self.own[row] = "layer"
                self._beside_attention(kids)
                if any(self.own[kid] == "ffn" for kid in kids):
                    self._activations_between(kids)

    def _beside_attention(self, kids: list[int]) -> None:
        blocks = [k for k in kids if self.own[k] == "container" and self._count(k)]
        convolved = [kid for kid in blocks if self._convolves(kid)]
        first = self._first
        mixing = min(float(first[kid]) for kid in kids if self.own[kid] in _MIXING)
        for kid in kids:
            if self.own[kid] == "linear":
                self.own[kid] = "attention" if is_attention_linear(self.tree, kid) else "ffn"
        for kid in blocks:
            mixes = kid in convolved and len(convolved) < len(blocks)
            # What runs before the attention, beside an FFN, makes the scale and shift of norms.
            scales = len(blocks) > 1 and self._count(kid) == 1 and 0 <= float(first[kid]) < mixing
            self.own[kid] = "mixer" if mixes else "norm" if scales else "ffn"

    def _convolves(self, row: int) -> bool:
        found = row in self.seen.convolved or bool(CONVOLUTION.search(self.tree.types[row]))
        return found or any(map(self._convolves, self.children[row]))

    def _activations_between(self, kids: list[int]) -> None:
        """An activation that a layer itself calls is that between the linear layers of its FFN."""
        for kid in kids:
            if self.own[kid] == "activation":
                self.own[kid] = "ffn"

    def like_their_class(self) -> None:
        """Layers that differ in their mixer have their other blocks in common: what is of a class
        that is a block elsewhere is one, and what is left beside it mixes tokens."""
        known: dict[str, set[str]] = {}
        for row, role in enumerate(self.own):
            if role in (*_MIXING, "ffn", "container") and self.tree.types[row] not in _ANYTHING:
                known.setdefault(self.tree.types[row], set()).add(role)
        alike = {kind: roles - {"container"} for kind, roles in known.items()}
        for row in sorted(self._repeated):
            if self.own[row] == "container":
                self._like_known(row, alike)

    def _like_known(self, row: int, alike: dict[str, set[str]]) -> None:
        kids = [kid for kid in self.children[row] if self.own[kid] == "container"]
        rest = []
        for kid in kids:
            roles = alike.get(self.tree.types[kid], set())
            if len(roles) == 1:
                self.own[kid] = next(iter(roles))
            elif self._count(kid):
                rest.append(kid)
        if any(self.own[kid] == "ffn" for kid in self.children[row]):
            self.own[row] = "layer"
            for kid in rest:
                self.own[kid] = "mixer"

    def ends_by_place(self) -> None:
        """A linear layer outside all layers makes the logits when it runs after them, and embeds
        what comes in when it runs before."""
        first = self._first
        layers = [float(first[row]) for row, role in enumerate(self.own) if role == "layer"]
        seen = [event for event in layers if event != NONE]
        if not seen:
            return
        for row, role in enumerate(self.own):
            event, around = float(first[row]), self.tree.ancestors(row)[1:]
            if role == "linear" and event != NONE and self._outside(around):
                self.own[row] = "lm_head" if event > max(seen) else "embedding"

    def norms_of_unknown(self) -> None:
        """A norm among the linear layers of a block that nothing gives away is that block's."""
        for row, role in self.told.items():
            above = int(self.tree.parent[row])
            if role != "norm" or above == NONE or self.own[above] != "container":
                continue
            if any(self.own[kid] == "linear" for kid in self.children[above]):
                self.own[row] = "container"

    def _outside(self, around: list[int]) -> bool:
        """Whether modules around another are none that is known, nor a layer of an unknown kind."""
        return all(self.own[row] == "container" for row in around) and not any(
            row in self._repeated and row not in self._stages for row in around
        )

    @cached_property
    def _stages(self) -> frozenset[int]:
        """Modules that hold layers."""
        layers = [row for row, role in enumerate(self.own) if role == "layer"]
        return frozenset(above for row in layers for above in self.tree.ancestors(row)[1:])

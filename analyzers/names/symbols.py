"""Cut the names of kernels into parts: demangled, without arguments, words apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|_GLOBAL__N_[01]::")
_BRACKETS = re.compile(r"[<>()]")
_HEAD = re.compile(r"[^<(\[{]*")
_RETURN_TYPE = re.compile(r"^(?:static |inline |__global__ )*void\s+")
_KERNEL_SUFFIX = re.compile(r"(?:\s*\[clone [^\]]*\]|\.kd)+$")
# CuTe DSL writes the Python function, its class and then the arguments into one name.
_CUTE_DSL = re.compile(r"^kernel_cutlass_(?:kernel_)?")
_CUTE_DSL_ARGUMENTS = re.compile(r"_object_at_.*|_?tensorptr.*")

# Words that CamelCase would cut in the middle.
_WHOLE_WORDS = re.compile(
    r"MoE|RoPE|RoPe|ReLU|ReLu|GeLU|GeLu|SiLU|SiLu|SwiGLU|SwiGlu|GeGLU|GeGlu|LoRA|BFloat16|DyT"
)
_WORD_STARTS = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SPACES = re.compile(r" {2,}")
_SCOPE = re.compile(r" ?:: ?")

# Itanium C++ names: literal values, substitutions, types that carry a meaning, source names.
_LENGTH = re.compile(r"\d+")
_MANGLED = re.compile(r"L[a-z]n?\d+E?|(DF16b)|(DF16_)|S[0-9A-Z]*_|T\d*_|(\d+)|.")


_TELLING = 400  # characters


@dataclass(frozen=True)
class Symbol:
    """A kernel's qualified name and the text of its template arguments, as they are written."""

    name: str
    arguments: str

    @cached_property
    def name_words(self) -> str:
        """The qualified name in lower case, words apart."""
        return split_words(self.name)

    @cached_property
    def argument_words(self) -> str:
        """The first template arguments in lower case, words apart; the rest repeats them."""
        return split_words(self.arguments[:_TELLING])


def read_symbol(raw: str) -> Symbol:
    """Cut a kernel's name; function arguments and the return type are dropped."""
    text = demangle(_KERNEL_SUFFIX.sub("", raw.strip()))
    text = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", text))
    if text.startswith("std::enable_if"):
        text = _after_return_type(text)
    if text.startswith("kernel_cutlass_"):
        return Symbol(_CUTE_DSL_ARGUMENTS.sub("", _CUTE_DSL.sub("", text)), "")
    head = _HEAD.match(text)
    name = head.group().strip() if head else text
    return Symbol(name, _template_arguments(text[len(name) :]))


def split_words(text: str) -> str:
    """Lower case with snake_case and CamelCase words apart: "RMSNorm_fwd" is "rms norm fwd"."""
    whole = _WHOLE_WORDS.sub(lambda word: word.group().capitalize(), text)
    spaced = _SPACES.sub(" ", _WORD_STARTS.sub(" ", whole))
    return _SCOPE.sub("::", spaced).strip().lower()


def demangle(name: str) -> str:
    """An Itanium C++ name made readable: the qualified name, then in <> every name it mentions.

    Enough to recognise a kernel, also when the name is cut off; not a full demangler.
    """
    if not name.startswith("_Z"):
        return name
    nested = name.startswith("_ZN")
    position = 3 if nested or name.startswith("_ZL") else 2
    parts, position = _source_names(name, position, nested)
    if not parts:
        return name
    mentioned = _mentioned_names(name[position:])
    arguments = f"<{', '.join(mentioned)}>" if mentioned else ""
    return "::".join(part for part in parts if part != "_GLOBAL__N_1") + arguments


def _source_names(name: str, position: int, nested: bool) -> tuple[list[str], int]:
    parts: list[str] = []
    while position < len(name):
        if name[position] in "KVrRO" or name.startswith(("L", "St"), position):
            position += 2 if name.startswith("St", position) else 1
            continue
        digits = _LENGTH.match(name, position)
        if digits is None:
            break
        end = digits.end() + int(digits.group())
        parts.append(name[digits.end() : end])
        position = end
        if not nested:
            break
    return parts, position


def _mentioned_names(rest: str) -> list[str]:
    found: list[str] = []
    position = 0
    while match := _MANGLED.match(rest, position):
        position = match.end()
        brain_float, half, length = match.groups()
        if length:
            end = position + int(length)
            word = rest[position:end]
            if word[:1].isalpha() or word[:1] == "_":
                found.append(word)
                position = end
        elif brain_float or half:
            found.append("bfloat16" if brain_float else "half")
    return found


def _after_return_type(text: str) -> str:
    """Drop `std::enable_if<…>::type` in front of a name."""
    end = _closing_bracket(text)
    return text[end:].removeprefix("::type").strip() if end < len(text) else text


def _template_arguments(text: str) -> str:
    if not text.startswith("<"):
        return ""
    end = _closing_bracket(text)
    return text[1 : end - 1] if text[end - 1] == ">" else text[1:end]


def _closing_bracket(text: str) -> int:
    """Where the first `<` closes; comparisons in round brackets do not count. Else the end."""
    angles = rounds = 0
    for match in _BRACKETS.finditer(text):
        bracket = match.group()
        if bracket == "(":
            rounds += 1
        elif bracket == ")":
            rounds -= 1
        elif rounds == 0 and text[match.start() - 1 : match.start()] != "-":
            angles += 1 if bracket == "<" else -1
            if angles == 0:
                return match.end()
    return len(text)


# --- what Inductor fused

_INDUCTOR = re.compile(
    r"^(?:triton_(?:(?P<kind>[a-z]{3})_)?fused|(?:graph_\d+_)?(?P<cpp>cpp|cuda)_fused)"
    r"(?:_(?P<operators>.*?))??(?:_(?P<number>\d+))?(?:_\d+d\w*)?$"
)


@dataclass(frozen=True)
class FusedName:
    """A kernel of Inductor: its kind (poi, red, per, tem, for, cpp, …) and its operators."""

    kind: str
    operators: tuple[str, ...]


def read_fused_name(name: str, vocabulary: frozenset[str]) -> FusedName | None:
    """What Inductor wrote into a kernel's name; None for a kernel of somebody else.

    Operators are joined by the same "_" that stands inside them, so the longest known one wins.
    """
    match = _INDUCTOR.match(name)
    if match is None:
        return None
    kind = match["kind"] or match["cpp"] or "poi"
    return FusedName(kind, _split_operators(match["operators"] or "", vocabulary))


_LONGEST_OPERATOR = 9


def _split_operators(text: str, vocabulary: frozenset[str]) -> tuple[str, ...]:
    words = text.split("_")
    operators: list[str] = []
    at = 0
    while at < len(words):
        for size in range(min(_LONGEST_OPERATOR, len(words) - at), 1, -1):
            candidate = "_".join(words[at : at + size])
            if candidate in vocabulary:
                break
        else:
            size, candidate = 1, words[at]
        if candidate:
            operators.append(candidate)
        at += size
    return tuple(operators)


# --- display

_ROUND_GROUP = re.compile(r"\([^()]*\)")
_LAMBDA = re.compile(r"(?:::)?(?:\{[^{}]*\}|\[[^\[\]]*\]|operator\b|\bconst\b|#\d+)+")
_NAMESPACE = re.compile(r"\b(?:[A-Za-z_]\w*::)+(?=\w)")
_LITERAL_SUFFIX = re.compile(r"\b(\d+)(?:ul|u|l)\b")
_UNSIGNED = re.compile(r"\bunsigned ")
_LOOSE_ENDS = re.compile(r"(?:\s*::)?\s*(?=[,<>]|$)")
_TILE = re.compile(r"cute::C<(\d+)>, cute::C<(\d+)>, cute::C<(\d+)>")
_TENSILE = re.compile(r"^(Custom_)?(Cijk_\w+?_\w+?_\w+?)_.*?(MT\d+x\d+x\d+)")
_NO_FUNCTOR = re.compile(r"\s*(?:\d+|\w*TensorList\w*|\w*Metadata\b.*)(?:<.*)?$")
_LOOPS = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply")
_GENERIC = frozenset(
    {"kernel", "Kernel", "Kernel2", "device_kernel", "kentry", "run", "main_kernel"}
)


def short_name(raw: str) -> str:
    """A kernel's name for people: function, functor, type and tile, without the rest."""
    tensile = _TENSILE.match(raw)
    if tensile:
        return f"{tensile[2]} {tensile[3]}"
    symbol = read_symbol(raw)
    function = _function_name(symbol.name)
    arguments = _short_arguments(symbol)
    return f"{function}<{arguments}>" if arguments else function


def _function_name(name: str) -> str:
    parts = name.split("::")
    if len(parts) > 1 and parts[-1] in _GENERIC:
        return "::".join(parts[-2:])
    return parts[-1]


def _short_arguments(symbol: Symbol) -> str:
    text = symbol.arguments
    tiles = _TILE.findall(text)
    if tiles and "Gemm" in text:
        # The first shape is that of the cluster, the second that of the tile.
        return f"GemmUniversal {'x'.join(tiles[min(1, len(tiles) - 1)])}"
    text = _simplify(text)
    if _LOOPS.search(symbol.name):
        functors = (part for part in _split_top(text) if not _NO_FUNCTOR.match(part))
        text = next(functors, text)
    return text.strip()


def _simplify(text: str) -> str:
    for _ in range(6):
        inner = _ROUND_GROUP.sub("", text)
        if inner == text:
            break
        text = inner
    text = _NAMESPACE.sub("", _LAMBDA.sub("", text))
    text = _LITERAL_SUFFIX.sub(r"\1", _UNSIGNED.sub("u", text))
    return _LOOSE_ENDS.sub("", text)


def _split_top(text: str) -> list[str]:
    """Cut at the commas that stand in no bracket."""
    parts = [""]
    depth = 0
    for character in text:
        depth += (character == "<") - (character == ">")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts

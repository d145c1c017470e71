"""Which files are an installed library's, by their names alone: a profiler's frames name a file
from its package on, whoever wrote it."""

from __future__ import annotations

import re

# Packages that programs for transformers call into and that are rarely the user's own.
_LIBRARIES = re.compile(
    r"accelerate|bitsandbytes|composer|datasets|deepspeed|diffusers|fairscale|flash_attn|flashinfer"
    r"|huggingface_hub|lightning(_fabric)?|megatron|numpy|optimum|pandas|peft|PIL"
    r"|pytorch_lightning|safetensors|scipy|sentence_transformers|sglang|sklearn|tokenizers"
    r"|torch(ao|audio|tune|vision)|tqdm|transformer_engine|transformers|trl|unsloth|vllm|xformers"
)


def without_folder(file: str) -> str:
    """A file of an installed package by its name in it, as the profiler's own frames name it."""
    return re.split(r"[/\\](?:site|dist)-packages[/\\]", file)[-1]


def package_of(file: str) -> str:
    """The package that a file lies in; the name of a module that lies in none."""
    return re.split(r"[/\\]", without_folder(file))[0].removesuffix(".py")


def is_library(file: str) -> bool:
    """Whether a file is known to be an installed library's."""
    return without_folder(file) != file or _LIBRARIES.fullmatch(package_of(file)) is not None

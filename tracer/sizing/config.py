"""Reading a Hugging Face `config.json`: the same thing goes by several names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tracer.errors import InputError

# The inner configs that hold the language model of a multimodal one.
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "text")


def _mapping(value: object) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


@dataclass(frozen=True)
class Config:
    """A config as it was written; `name` is what to call the model."""

    values: Mapping[str, Any]
    name: str | None = None

    @property
    def model_type(self) -> str:
        return str(self.values.get("model_type") or "unknown")

    @property
    def architecture(self) -> str | None:
        names = self.values.get("architectures")
        return str(names[0]) if isinstance(names, list) and names else None

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these keys that is present and not null."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return value
        return default

    def integer(self, *names: str, default: int | None = None) -> int:
        """A whole number that must be there, or have a default."""
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            shown = "is missing" if value is None else f"is {value!r}, not a whole number"
            raise InputError(
                f"{self.model_type} config: `{names[0]}` {shown}; give the model's config.json",
                rule="plan.config",
            )
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        return default if value is None else bool(value)

    def items(self, name: str) -> list[Any] | None:
        value = self.values.get(name)
        return list(value) if isinstance(value, list | tuple) else None

    def inner(self, name: str) -> Config:
        """A nested config; empty if there is none."""
        return Config(_mapping(self.values.get(name)) or {}, self.name)

    @property
    def text(self) -> Config:
        """The language model's own config: this one, unless it wraps another."""
        for key in _TEXT_KEYS:
            nested = _mapping(self.values.get(key))
            if nested and len(nested) > 1:
                return Config({**_outer(self.values), **nested}, self.name).text
        return self

    @property
    def wraps(self) -> bool:
        return self.text is not self


def _outer(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the wrapper says for the inner model too, where the inner one is silent."""
    kept = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config")
    return {key: values[key] for key in kept if key in values}


def read_config(path: str | Path) -> Config:
    """A config.json, or the folder that holds one."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{file}: no such file; give a model's config.json or its folder", rule="plan.config"
        ) from None
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}", rule="plan.config") from None
    except ValueError:
        raise InputError(
            f"{file}: not JSON; give a model's config.json", rule="plan.config"
        ) from None
    checked = _mapping(values)
    if checked is None or not ("model_type" in checked or "architectures" in checked):
        raise InputError(
            f"{file}: no `model_type` in it; give a Hugging Face config.json", rule="plan.config"
        )
    return Config(checked, _name(checked, file))


def _name(values: Mapping[str, Any], file: Path) -> str:
    told = str(values.get("_name_or_path") or "").rstrip("/")
    if told:
        return told.rsplit("/", 1)[-1]
    return file.stem if file.stem != "config" else file.resolve().parent.name

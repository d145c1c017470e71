"""Acts on modules of torch when they are loaded, without loading them: the compiler takes seconds
to import, and most programs never use it."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class ImportWatch(importlib.abc.MetaPathFinder):
    """Calls the action of each module named: at `start` when it is loaded already, else after its
    import, until `close`; and `before` right before such an import."""

    def __init__(
        self, actions: Mapping[str, Action], before: Callable[[], None] | None = None
    ) -> None:
        self._actions, self._before = dict(actions), before
        self._searching: set[str] = set()

    def start(self) -> None:
        """Act on what is loaded, and wait for the rest."""
        for name in list(self._actions):
            module = sys.modules.get(name)
            if module is not None:
                self._actions.pop(name)(module)
        if self._actions:
            sys.meta_path.insert(0, self)

    def close(self) -> None:
        """Wait no longer."""
        self._actions.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with the action behind its execution."""
        action = self._actions.get(fullname)
        if action is None or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._loading, self._loaded)
        return spec

    def _loading(self, module: ModuleType) -> None:
        if self._before is not None and module.__name__ in self._actions:
            self._before()

    def _loaded(self, module: ModuleType) -> None:
        action = self._actions.pop(module.__name__, None)
        if action is not None:
            action(module)


class _Loader(importlib.abc.Loader):
    """Another loader, and a call before it and after it."""

    def __init__(self, loader: importlib.abc.Loader, loading: Action, loaded: Action) -> None:
        self._loader, self._before, self._after = loader, loading, loaded

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._before(module)
        self._loader.exec_module(module)
        self._after(module)

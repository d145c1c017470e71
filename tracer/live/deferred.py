"""Beginning to record when a program first uses torch.

The program decides what happens before it imports torch and before it touches a GPU (variables
that choose threads and devices, processes that it forks): nothing of ours may come first.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

# What the drivers of GPUs put into the file system.
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")


class FirstUse:
    """Calls `action` once: when torch is imported or, where there may be a GPU or without
    `at_import`, when the program first initializes it or calls a module."""

    def __init__(self, action: Callable[[], None], *, at_import: bool = True) -> None:
        self._action: Callable[[], None] | None = action
        self._at_import = at_import
        self._finder = _AfterImport("torch", self._torch_is_here)
        self._module_call: Any = None
        self._process = os.getpid()

    def watch(self) -> None:
        """Begin to look out."""
        if "torch" in sys.modules:
            self._torch_is_here()
        else:
            sys.meta_path.insert(0, self._finder)

    def close(self) -> None:
        """Stop looking out."""
        self._action = None
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        self._unpatch()

    def _torch_is_here(self) -> None:
        import torch

        has_driver = any(Path(name).exists() for name in _DEVICE_FILES)
        has_gpu = has_driver and bool(torch.version.cuda or torch.version.hip)
        if self._at_import and not has_gpu:
            self._act()
            return
        self._patch()
        if has_gpu:
            lazy: Any = torch.cuda._lazy_call
            lazy(self._act)

    def _act(self) -> None:
        action, self._action = self._action, None
        self._unpatch()
        if action is not None and os.getpid() == self._process:  # a forked child is not traced
            action()

    def _patch(self) -> None:
        from torch import compiler, nn

        original: Any = nn.Module.__call__
        act = self._act

        # The name `self` is what a profiler with Python frames looks for.
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if compiler.is_compiling():
                return original(self, *args, **kwargs)
            act()
            return nn.Module.__call__(self, *args, **kwargs)

        self._module_call = (original, call)
        nn.Module.__call__ = call  # type: ignore[method-assign]

    def _unpatch(self) -> None:
        if self._module_call is None:
            return
        from torch import nn

        original, call = self._module_call
        if nn.Module.__call__ is call:
            nn.Module.__call__ = original  # type: ignore[method-assign]
            self._module_call = None


class _AfterImport(MetaPathFinder):
    """Does something right after a module was imported for the first time."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ActingLoader(spec.loader, self._action)
        return spec


class _ActingLoader(Loader):
    """A module's own loader, and an action after it; the module keeps no trace of it."""

    def __init__(self, loader: Loader, action: Callable[[], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

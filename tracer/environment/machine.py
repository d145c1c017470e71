"""The machine as files and variables: what a check may read without importing anything."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Where to look; tests give a root of their own."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    path: Sequence[str] = field(default_factory=lambda: tuple(sys.path))

    def at(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """A small file, stripped; None if it is absent or unreadable."""
        try:
            return self.at(name).read_text("utf-8", "replace").strip()
        except OSError:
            return None

    def integer(self, name: str) -> int | None:
        text = self.text(name)
        return int(text) if text is not None and text.lstrip("-").isdigit() else None

    def names(self, folder: str) -> list[str]:
        """Sorted names in a folder; empty if there is none."""
        try:
            return sorted(entry.name for entry in self.at(folder).iterdir())
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        return self.at(name).exists()

    def variable(self, name: str) -> str | None:
        return self.environ.get(name)

    def which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    @property
    def in_container(self) -> bool:
        """Docker, Podman, Kubernetes and others leave one of these."""
        if self.exists("/.dockerenv") or self.exists("/run/.containerenv"):
            return True
        groups = self.text("/proc/1/cgroup") or ""
        known = ("docker", "kubepods", "containerd", "libpod", "lxc")
        return bool(self.variable("KUBERNETES_SERVICE_HOST")) or any(n in groups for n in known)

    @property
    def in_wsl(self) -> bool:
        return "microsoft" in (self.text("/proc/version") or "").lower()

    def pci_gpus(self, vendor: str) -> list[str]:
        """Addresses of display controllers of a vendor (`0x10de` NVIDIA, `0x1002` AMD)."""
        return [
            address
            for address in self.names("/sys/bus/pci/devices")
            if self.text(f"/sys/bus/pci/devices/{address}/vendor") == vendor
            and (self.text(f"/sys/bus/pci/devices/{address}/class") or "").startswith(
                ("0x0300", "0x0302", "0x0380", "0x1200")
            )
        ]

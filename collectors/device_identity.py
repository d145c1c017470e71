"""Which device of the driver a device of the framework is.

The framework numbers the devices that it may see; the driver numbers all of them. A number alone
says nothing, so a device is found by its UUID or PCI address, and where neither is known it is not
found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

PCI_ORDER = "PCI_BUS_ID"


class Identity(NamedTuple):
    """A device as the framework knows it. Empty texts: not known."""

    number: int
    uuid: str = ""
    pci: str = ""


class Installed(NamedTuple):
    """A device as the driver knows it, at its place in the driver's order."""

    handle: Any
    uuid: str
    pci: str
    name: str


def find_handle(
    identity: Identity, installed: Sequence[Installed], by_uuid: Callable[[str], Any | None]
) -> Any | None:
    """The driver's handle of a device; None when it cannot be established."""
    if identity.uuid:
        bare = bare_uuid(identity.uuid)
        matches = [device.handle for device in installed if bare_uuid(device.uuid) == bare]
        if matches:
            return matches[0]
        return by_uuid(identity.uuid if identity.uuid.startswith("MIG-") else f"MIG-{bare}")
    matches = [device.handle for device in installed if identity.pci and device.pci == identity.pci]
    return matches[0] if matches else None


def bare_uuid(uuid: str) -> str:
    """A UUID without the word before it."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def visible_identities(
    visible: str | None, order: str | None, installed: Sequence[Installed]
) -> list[Identity]:
    """The framework's devices by the variables that it reads, for want of a better source.

    Numbers are in the framework's own order, the fastest first, unless `order` says otherwise:
    then, or when all are alike, they are the driver's.
    """
    known = order == PCI_ORDER or len({device.name for device in installed}) <= 1
    if visible is None:
        return [_numbered(i, i, installed, known) for i in range(len(installed))]
    found: list[Identity] = []
    for token in (part.strip() for part in visible.split(",")):
        identity = _from_token(len(found), token, installed, known)
        if identity is None:  # the framework stops at the first entry that names no device
            break
        if any(other.uuid and other.uuid == identity.uuid for other in found):
            return []  # it refuses a device given twice
        found.append(identity)
    return found


def _numbered(index: int, number: int, installed: Sequence[Installed], known: bool) -> Identity:
    return Identity(index, installed[number].uuid if known else "")


def _from_token(
    index: int, token: str, installed: Sequence[Installed], known: bool
) -> Identity | None:
    if token.isdecimal():
        number = int(token)
        return _numbered(index, number, installed, known) if number < len(installed) else None
    if token.startswith("MIG-"):
        return Identity(index, token)
    if not token.startswith("GPU-"):
        return None
    matches = [device.uuid for device in installed if device.uuid.startswith(token)]
    return Identity(index, matches[0]) if len(matches) == 1 else None

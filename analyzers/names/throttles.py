"""Why a GPU holds its clocks down, by the bits of NVML's `nvmlClocksEventReason…`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# What is not as it should be: heat, or the power supply.
SLOWDOWNS: Mapping[int, str] = MappingProxyType(
    {
        0x08: "hardware slowdown",
        0x20: "thermal slowdown (software)",
        0x40: "thermal slowdown (hardware)",
        0x80: "power brake",
    }
)
# The limit that was set: usual under full load.
POWER_CAP = 0x04

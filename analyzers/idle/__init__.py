"""Idle time of the device: the gaps, the waits, and what caused each."""

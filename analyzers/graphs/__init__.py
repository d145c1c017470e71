"""Captured graphs: what was captured, and which replayed node is which captured launch."""

"""Collectives as rows, carried out by a device or by the host."""

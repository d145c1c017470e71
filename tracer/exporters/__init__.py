"""Outputs: each file writes one form of an `Analysis`."""

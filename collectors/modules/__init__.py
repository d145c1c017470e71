"""Calls of modules while the program runs: ranges, the tree, and the calls at its root."""

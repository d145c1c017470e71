"""Exports of Nsight Systems (SQLite)."""

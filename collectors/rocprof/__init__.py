"""Recordings of rocprofv3: its JSON, and its tables as CSV."""

"""A live recording: what was asked for, the capture, and the `Trace` and report made of it."""

"""`python -m tracer` and the command `tracer`."""

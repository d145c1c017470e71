"""Recordings that ship with the package; `tracer demo` reports one."""

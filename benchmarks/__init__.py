"""Ratios of speed and overhead, each of things run in turn. `python -m benchmarks.bench_…`."""

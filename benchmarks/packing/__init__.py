"""Measure how full each packing's rows are, and its speed: `python -m benchmarks.packing`."""

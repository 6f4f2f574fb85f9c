"""Measure the cost of very large datasets and worlds: `python -m benchmarks.scale`."""

"""Measure how full and how fast the packings are: `python -m benchmarks.packing`."""

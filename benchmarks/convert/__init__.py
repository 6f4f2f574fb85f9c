"""Measure the converter beside other ways to write MDS: `python -m benchmarks.convert`."""

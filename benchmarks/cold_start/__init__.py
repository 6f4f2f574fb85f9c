"""Measure how loaders start with an empty cache: `python -m benchmarks.cold_start`."""

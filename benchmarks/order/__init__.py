"""Measure the cost of orders and how well they shuffle: `python -m benchmarks.order`."""

"""Measure the cost of orders and how they shuffle documents: `python -m benchmarks.order`."""

"""The cost of very large datasets and worlds; see `__main__`."""

"""Kill conversions at random, and compare their objects: `python -m stress.conversions`."""

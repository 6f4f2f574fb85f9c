"""Kill conversions at random, and check their output: `python -m stress.conversions`."""

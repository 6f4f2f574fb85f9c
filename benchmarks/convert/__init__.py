"""Compare the converter with other ways to write MDS: `python -m benchmarks.convert`."""

"""How full the packings leave their rows, and how fast they are: `python -m benchmarks.packing`."""

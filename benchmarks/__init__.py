"""Benchmarks: cloudload beside the bare tokenizers and other loaders. `make bench`, `make
bench-cold`."""

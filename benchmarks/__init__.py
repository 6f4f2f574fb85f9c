"""Benchmarks of cloudload, bare tokenizers and other loaders: `make bench`, `make bench-cold`."""

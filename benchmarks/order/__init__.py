"""What orders cost, and what they do to documents and shards: `python -m benchmarks.order`."""

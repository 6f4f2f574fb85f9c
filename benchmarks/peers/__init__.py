"""The sides of comparisons, each of which runs in its own process."""

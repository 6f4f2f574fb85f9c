"""Training jobs in a hostile world: `python -m stress.chaos`."""

"""Run training jobs under injected faults: `python -m stress.chaos`."""

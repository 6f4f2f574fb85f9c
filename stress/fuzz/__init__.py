"""Fuzz the code that reads data and states: `python -m stress.fuzz`."""

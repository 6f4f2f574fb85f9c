"""Hostile input for whatever reads data and states: `python -m stress.fuzz`."""

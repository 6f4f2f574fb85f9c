"""Measure what a user sees of each fault, and how soon: `python -m stress.fault_table`."""

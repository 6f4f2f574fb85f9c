"""Measure how each fault is reported to a user, and how soon: `python -m stress.fault_table`."""

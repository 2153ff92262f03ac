"""Faults of real processes and networks: `python -m tests.faults.real`, and the tests that are a sample of it."""

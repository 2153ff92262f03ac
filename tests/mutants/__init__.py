"""Mutations of lines that matter, each with the tests that must catch it (`make mutants`)."""

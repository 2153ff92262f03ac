"""Benchmarks of tpux, run by `make bench`. README.md describes the method and how to add one."""

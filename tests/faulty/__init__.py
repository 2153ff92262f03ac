"""A faulty environment: system calls that fail on request, in every process of tpux (`preload.py`, `preload.c`)."""

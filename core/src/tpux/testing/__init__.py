"""Helpers for the tests of plugins."""

from __future__ import annotations

from collections.abc import Generator

from tpux.plugin.steps import Result, Step, dry_run


def steps_of(steps: Generator[Step, Result, object]) -> list[Step]:
    """Return the steps that a hook yields if each result is the step's `example`; nothing is run.

    Args:
        steps: what `check`, `setup` or `solve` returned.
    """
    return dry_run(steps)

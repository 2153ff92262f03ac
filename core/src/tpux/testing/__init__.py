"""What tests of plugins use."""

from __future__ import annotations

from collections.abc import Generator

from tpux.plugin.steps import Result, Step, dry_run


def steps_of(steps: Generator[Step, Result, object]) -> list[Step]:
    """The steps that a hook yields where each answer is the step's example: nothing is done.

    Args:
        steps: what a `check`, `setup`, `diagnose` or `solve` gave.
    """
    return dry_run(steps)

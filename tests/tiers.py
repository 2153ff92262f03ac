"""Which cases of a parametrised test `make test` runs; `make test-all` runs the others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def representative(cases: Iterable[object], count: int = 1) -> list[object]:
    """Return the cases for `pytest.mark.parametrize`, all but the first ones with the mark `system`.

    Args:
        cases: as `parametrize` takes them.
        count: how many stay in `make test`.
    """
    first, others = (every := list(cases))[:count], every[count:]
    return [*first, *map(_system, others)]


def _system(case: object) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.system], id=case.id)
    return pytest.param(*(case if isinstance(case, (tuple, list)) else (case,)), marks=pytest.mark.system)

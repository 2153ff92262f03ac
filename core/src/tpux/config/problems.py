"""Problems as they are shown: in the order of the file, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tpux.config.render import MASK
from tpux.errors import Problem

_SHORTEST = 4  # masking a secret of fewer characters would mask half the message


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, by line and column; those of arguments first."""
    return sorted(dict.fromkeys(problems), key=_position)


def masked(problem: Problem, secrets: Mapping[str, str]) -> Problem:
    """The problem without the value of any secret."""
    for secret in sorted(secrets.values(), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            message, hint = problem.message.replace(secret, MASK), problem.hint.replace(secret, MASK)
            problem = replace(problem, message=message, hint=hint)
    return problem


def _position(problem: Problem) -> tuple[int, int]:
    match = re.search(r":(\d+):(\d+)$", problem.where)
    return (int(match[1]), int(match[2])) if match else (0, 0)

"""Problems as they are shown: in the order of the file, without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tpux import env
from tpux.errors import Problem, TpuxError

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue

_SHORTEST = 4  # masking a secret of fewer characters would mask half the message


def masked(problem: Problem, secrets: Mapping[str, str]) -> Problem:
    """The problem without the value of any secret."""
    for secret in sorted(secrets.values(), key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            message, hint = problem.message.replace(secret, MASK), problem.hint.replace(secret, MASK)
            problem = replace(problem, message=message, hint=hint)
    return problem


MASK = "********"


def variable(name: str) -> str:
    """The shell variable of a secret."""
    return f"${{{env.SECRET_PREFIX}{name}}}"


def stored(text: str) -> str:
    """A text as it is written down: a `$` of its own is doubled, so that placeholders stand out."""
    return text.replace("$", "$$")


def placeholder(name: str) -> str:
    """A secret as it is written down."""
    return f"${{env:{name}}}"


def restored(value: JsonValue, secrets: Mapping[str, str]) -> JsonValue:
    """What was written down by `stored` and `placeholder`, with the secrets in their places.

    Raises:
        TpuxError: a secret is not there.
    """
    if isinstance(value, dict):
        return {key: restored(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item, secrets) for item in value]
    if not isinstance(value, str):
        return value

    def original(token: re.Match[str]) -> str:
        if token[1] is None:
            return "$"
        if token[1] not in secrets:
            raise TpuxError(f"the job's secret {token[1]} is not there", hint=f"export {token[1]} again")
        return secrets[token[1]]

    return re.sub(r"\$\$|\$\{env:([A-Za-z_]\w*)\}", original, value)

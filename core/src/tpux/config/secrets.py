"""Secrets of a config: masked in messages, refused where others can read them, placeholders in its stored form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tpux import env
from tpux.config.document import Node, nodes_at, placeholders, scalars
from tpux.errors import MASK as MASK
from tpux.errors import Problem, TpuxError, masked

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

_STORED = re.compile(r"\$\$|\$\{env:([A-Za-z_]\w*)\}")


def mask(problem: Problem, secrets: Mapping[str, str]) -> Problem:
    """Return the problem with the value of each secret masked."""
    values = secrets.values()
    return replace(problem, message=masked(problem.message, values), hint=masked(problem.hint, values))


def exposed_secrets(section: str, node: Node, exposed: Mapping[str, str]) -> Iterator[Problem]:
    """Yield an error for each value with a secret in one of a section's `exposed_keys`."""
    for key, hint in exposed.items():
        for scalar in (each for found in nodes_at(node, key.split(".")) for each in scalars(found)):
            names = dict.fromkeys(each.name for each in placeholders(scalar) if each.kind == "env")
            for name in names:
                message = (
                    f"{section}.{key} cannot have the secret {placeholder(name)}: other users of a worker can read it"
                )
                yield Problem(scalar.span.location, message, hint)


def literal_secrets(section: str, node: Node, secret: Mapping[str, str]) -> Iterator[Problem]:
    """Yield an error for each value without a secret in one of a section's `secret_keys`."""
    for key, variable in secret.items():
        for scalar in (each for found in nodes_at(node, key.split(".")) for each in scalars(found)):
            if scalar.value is not None and not any(each.kind == "env" for each in placeholders(scalar)):
                message = f"{section}.{key} is a secret, which would be stored with the job"
                word = "-" if key.rpartition(".")[2].isdecimal() else f"{key}:"
                hint = f"write {word} {placeholder(variable)}, and export {variable}=..."
                yield Problem(scalar.span.location, message, hint)


def shell_variable(name: str) -> str:
    """Return the reference by which a shell script reads a secret."""
    return f"${{{env.SECRET_PREFIX}{name}}}"


def escape(text: str) -> str:
    """Double each `$` of a string for storage, so that it cannot be taken for a placeholder."""
    return text.replace("$", "$$")


def placeholder(name: str) -> str:
    """Return the placeholder of a secret in a stored config."""
    return f"${{env:{name}}}"


def names_in(value: JsonValue) -> set[str]:
    """Return the names of the secrets whose placeholders are in a stored value."""
    if isinstance(value, dict):
        return {name for item in value.values() for name in names_in(item)}
    if isinstance(value, list):
        return {name for item in value for name in names_in(item)}
    return {name for name in _STORED.findall(value) if name} if isinstance(value, str) else set()


def restore(value: JsonValue, secrets: Mapping[str, str]) -> JsonValue:
    """Undo `escape` and replace placeholders by the secrets.

    Raises:
        TpuxError: a secret is missing.
    """
    if isinstance(value, dict):
        return {key: restore(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [restore(item, secrets) for item in value]
    if not isinstance(value, str):
        return value

    def original(token: re.Match[str]) -> str:
        if token[1] is None:
            return "$"
        if token[1] not in secrets:
            raise TpuxError(f"the job's secret {token[1]} is missing", hint=f"export {token[1]} again")
        return secrets[token[1]]

    return _STORED.sub(original, value)

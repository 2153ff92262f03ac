"""Filling the holes of a config: for its models, for the disk, for people's eyes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tpux import env
from tpux.config.tree import Hole, Tree, plain
from tpux.errors import TpuxError

if TYPE_CHECKING:
    from tpux.machines import JsonValue

MASK = "********"


def render(
    word: str, tree: Tree, words: Mapping[str, str], secret: Callable[[str], str], literal: Callable[[str], str] = str
) -> JsonValue:
    """The section `word` as JSON.

    Args:
        word: the section's name. In `command` a secret becomes the shell variable that core exports, so
            that no value is pasted into a script.
        tree: its content.
        words: the job's words.
        secret: what stands for the secret of that name in other sections.
        literal: what becomes of all other text in other sections.
    """
    if word == "command":
        return plain(tree, lambda hole: words[hole.name] if hole.kind == "job" else variable(hole.name))

    def fill(hole: Hole) -> str:
        return literal(words[hole.name]) if hole.kind == "job" else secret(hole.name)

    return plain(tree, fill, literal)


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

"""Partial responses: the `fields` parameter of Google APIs.

Source: "Performance tips: partial response" of the Google API documentation. The syntax: `a,b`, `a/b`, `a(b,c)`, `*`.
"""

from __future__ import annotations

from pydantic import JsonValue

from tpux_emulator.errors import invalid

Tree = dict[str, "Tree"]


def parse_fields(fields: str) -> Tree:
    """Parse a field selection into a tree, in which an empty subtree selects everything.

    Raises:
        ApiError: 400 for unbalanced brackets or a missing name.
    """
    tree, rest = _list(fields)
    if rest:
        raise invalid(f"Invalid field selection {fields}", "fields")
    return tree


def _list(text: str) -> tuple[Tree, str]:
    tree: Tree = {}
    while True:
        end = next((i for i, letter in enumerate(text) if letter in ",()"), len(text))
        names, text = [name.strip() for name in text[:end].split("/")], text[end:]
        if not all(names):
            raise invalid("Invalid field selection: a name is missing", "fields")
        below: Tree = {}
        if text.startswith("("):
            below, text = _list(text[1:])
            if not text.startswith(")"):
                raise invalid("Invalid field selection: a bracket is missing", "fields")
            text = text[1:]
        for name in reversed(names):
            below = {name: below}
        _merge(tree, below)
        if not text.startswith(","):
            return tree, text
        text = text[1:]


def _merge(tree: Tree, other: Tree) -> None:
    for name, below in other.items():
        _merge(tree.setdefault(name, {}), below)


def select_fields(value: JsonValue, tree: Tree) -> JsonValue:
    """Return the part of a JSON value that a tree selects."""
    if not tree:
        return value
    if isinstance(value, list):
        return [select_fields(item, tree) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: select_fields(item, tree.get(key, tree.get("*", {})))
        for key, item in value.items()
        if _is_selected(key, tree)
    }


def _is_selected(key: str, tree: Tree) -> bool:
    return key in tree or "*" in tree

"""A config as YAML again."""

from __future__ import annotations

from typing import TextIO

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import RoundTripRepresenter

from tpux.machines import JsonValue


class _Representer(RoundTripRepresenter):
    """Scripts as blocks, null as a word."""


def _text(representer: RoundTripRepresenter, text: str) -> ScalarNode:
    printable = all(line.replace("\t", " ").isprintable() for line in text.split("\n"))
    style = '"' if not printable else "|" if "\n" in text else None
    node: ScalarNode = representer.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


def _null(representer: RoundTripRepresenter, _: None) -> ScalarNode:
    node: ScalarNode = representer.represent_scalar("tag:yaml.org,2002:null", "null")
    return node


_Representer.add_representer(str, _text)
_Representer.add_representer(type(None), _null)


def write(data: JsonValue, to: TextIO) -> None:
    """Write `data` to `to` as YAML that reads back as the same."""
    yaml = YAML()
    yaml.Representer = _Representer
    yaml.width = 4096  # a long line of a script stays one line
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(data, to)

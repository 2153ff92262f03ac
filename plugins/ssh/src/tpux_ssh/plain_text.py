"""Text of a server, or of a program on the way to it, for a message."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")


def printable(text: str) -> str:
    """Return text on one line, without what could control a terminal."""
    return "".join(char for char in " ".join(_SEQUENCE.sub("", text).split()) if char.isprintable())

"""Names of resources: how they are made and what the API refuses."""

from __future__ import annotations

import hashlib
import re

from tpux_emulator.errors import invalid

# AIP-122 resource ids as the TPU API checks them: RFC 1035 labels.
_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def check_id(text: str, field: str) -> str:
    """A resource id that a client chose.

    Raises:
        ApiError: 400, it is empty or not of the form that the API asks for.
    """
    if not _ID.fullmatch(text):
        raise invalid(
            f"Invalid resource ID '{text}' in the \"{field}\" field. It must be 1 to 63 characters: lower-case"
            " letters, digits and hyphens, starting with a letter and not ending with a hyphen.",
            field,
        )
    return text


def short(name: str) -> str:
    """The last part of a full name."""
    return name.rpartition("/")[2]


def number_for(seed: str) -> int:
    """A number of 63 bits that stays the same for a seed: the `id` of a node."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") >> 1

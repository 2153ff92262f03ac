"""Lists in pages (AIP-158)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

from tpux_emulator.api.call import Call
from tpux_emulator.errors import invalid

Item = TypeVar("Item")
_LARGEST = 1000


def page(call: Call, items: Sequence[tuple[str, Item]]) -> tuple[list[Item], str]:
    """One page of named items, and the token of the next one, empty at the end.

    A token holds the name after which the next page begins, so that items which come and go between two
    pages neither repeat nor hide others.

    Raises:
        ApiError: 400; a page size below zero or a token that this list did not give.
    """
    size = _size(call)
    after = _after(call.query.get("pageToken", ""))
    rest = sorted((name, position) for position, (name, _) in enumerate(items) if name > after)
    chosen = rest[:size]
    token = ""
    if len(rest) > size:
        token = base64.urlsafe_b64encode(f"after {chosen[-1][0]}".encode()).decode()
    return [items[position][1] for _, position in chosen], token


def _size(call: Call) -> int:
    text = call.query.get("pageSize", "0")
    if not text.lstrip("-").isdigit() or int(text) < 0:
        raise invalid(f"Invalid value at 'page_size' (TYPE_INT32), \"{text}\"", "page_size")
    return min(int(text) or call.cloud.settings.page_size, _LARGEST)


def _after(token: str) -> str:
    if not token:
        return ""
    try:
        text = base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError) as error:
        raise invalid("Invalid page token.", "page_token") from error
    if not text.startswith("after "):
        raise invalid("Invalid page token.", "page_token")
    return text.removeprefix("after ")

"""Lists in pages (AIP-158)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from tpux_emulator.api.call import ANY_LOCATION, Call
from tpux_emulator.cloud.cloud import Resource
from tpux_emulator.cloud.fault_rules import Effect
from tpux_emulator.errors import invalid
from tpux_emulator.protojson import JsonObject

Item = TypeVar("Item")
Record = TypeVar("Record", bound=Resource)
PAGE_PARAMETERS = frozenset({"pageSize", "pageToken"})
_MAX_PAGE_SIZE = 1000


def list_resources(
    call: Call, key: str, records: Mapping[str, Record], show: Callable[[Record], JsonObject]
) -> JsonObject:
    """Return a page of the resources in the project and location of the path.

    Args:
        call: the call; its location may be `-`, for all locations.
        key: the answer's field, such as `nodes`.
        records: all resources by full name.
        show: converts one to JSON.

    Raises:
        ApiError: 403 for an unknown zone, 400 for a bad page size or token.
    """
    if call.zone != ANY_LOCATION:
        call.cloud.catalog.check_zone(call.zone)
    project, zones = call.path["project"], call.cloud.catalog.zones if call.zone == ANY_LOCATION else [call.zone]
    unreachable = [zone for zone in zones if call.cloud.match_rule(Effect.UNREACHABLE, zone=zone)]
    answer = list_page(
        call,
        key,
        [
            (name, show(record))
            for name, record in records.items()
            if name.split("/")[1] == project and record.zone in zones and record.zone not in unreachable
        ],
    )
    if unreachable:
        answer["unreachable"] = [f"projects/{project}/locations/{zone}" for zone in unreachable]
    return answer


def list_page(call: Call, key: str, items: list[tuple[str, JsonObject]]) -> JsonObject:
    """Return a page of named items as the answer of a list method; `key` is the answer's field."""
    shown, token = page(call, items)
    answer: JsonObject = {}
    if shown:
        answer[key] = list(shown)
    if token:
        answer["nextPageToken"] = token
    return answer


def page(call: Call, items: Sequence[tuple[str, Item]]) -> tuple[list[Item], str]:
    """Return one page of named items, and the token of the next page, which is empty on the last one.

    A token holds the name after which the next page begins, so that items created or deleted between two pages
    neither repeat nor hide others.

    Raises:
        ApiError: 400 for a page size below zero or a token that is none.
    """
    size = _size(call)
    after = _parse_token(call.query.get("pageToken", ""))
    rest = sorted((name, position) for position, (name, _) in enumerate(items) if name > after)
    shown = rest[:size]
    token = ""
    if len(rest) > size:
        token = base64.urlsafe_b64encode(f"after {shown[-1][0]}".encode()).decode()
    return [items[position][1] for _, position in shown], token


def _size(call: Call) -> int:
    text = call.query.get("pageSize", "0")
    if not text.lstrip("-").isdigit() or int(text) < 0:
        raise invalid(f"Invalid value at 'page_size' (TYPE_INT32), \"{text}\"", "page_size")
    return min(int(text) or call.cloud.settings.page_size, _MAX_PAGE_SIZE)


def _parse_token(token: str) -> str:
    if not token:
        return ""
    try:
        text = base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError) as error:
        raise invalid("Invalid page token.", "page_token") from error
    if not text.startswith("after "):
        raise invalid("Invalid page token.", "page_token")
    return text.removeprefix("after ")

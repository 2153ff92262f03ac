"""Short forms of zones, such as `usc2b`."""

from __future__ import annotations

import re

_CONTINENTS = {
    "us": "us", "eu": "europe", "as": "asia", "me": "me", "na": "northamerica", "sa": "southamerica",
    "au": "australia", "af": "africa",
}  # fmt: skip
_DIRECTIONS = {"c": "central", "n": "north", "s": "south", "e": "east", "w": "west"}
_SHORT = re.compile(f"({'|'.join(_CONTINENTS)})(c|[ns]?[ew]|[ns])([0-9]{{1,2}})([a-z])")
_FULL = re.compile(r"([a-z]+)-((?:central|north|south|east|west)+)(\d+)-([a-z])")


def full_zone(zone: str) -> str:
    """Return the zone that a short form stands for, such as us-central2-b for `usc2b`; what is none is unchanged.

    It is made of the continent's first two letters (`na`, `sa`: North and South America), the first letter of each
    direction, the number and the letter: `asne1b` is asia-northeast1-b.
    """
    if (short := _SHORT.fullmatch(zone)) is None:
        return zone
    continent, directions, number, letter = short.groups()
    return f"{_CONTINENTS[continent]}-{''.join(_DIRECTIONS[each] for each in directions)}{number}-{letter}"


def short_zone(zone: str) -> str:
    """Return the short form of a zone, "" if it has none."""
    if (full := _FULL.fullmatch(zone)) is None:
        return ""
    continent, directions, number, letter = full.groups()
    initials = "".join(word[0] for word in re.findall("|".join(_DIRECTIONS.values()), directions))
    short = f"{next((key for key, name in _CONTINENTS.items() if name == continent), '')}{initials}{number}{letter}"
    return short if full_zone(short) == zone else ""

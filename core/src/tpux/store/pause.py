"""`pauses/USER/KEY.json`: which jobs of a user wait now, by a limit in their config; a plugin that counts writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from tpux.store.files import JsonFile

if TYPE_CHECKING:
    from pathlib import Path

    from tpux.store import Store


@dataclass(frozen=True)
class Pause:
    """Jobs whose config sets a key to what is used, or to less, wait; those that do not set it do not.

    Attributes:
        key: the key of the config, such as limits.month.hours.
        used: what is used.
        why: what they wait for, with `{limit}` for the job's own value.
        until: when they continue, in seconds since the epoch.
    """

    key: str
    used: float
    why: str
    until: float


def save(store: Store, pause: Pause) -> None:
    """Replace what is known of a key."""
    directory = _directory(store)
    directory.mkdir(parents=True, exist_ok=True)
    JsonFile(directory / f"{pause.key}.json", Pause).save(pause)


def current(store: Store, sections: Mapping[str, object], now: float) -> Pause | None:
    """Return the pause in which a job with these sections waits now; None if there is none."""
    for path in sorted(_directory(store).glob("*.json")):
        if (pause := JsonFile(path, Pause).load()) is None or now >= pause.until:
            continue
        section, *names = pause.key.split(".")
        limit = reduce(lambda found, name: getattr(found, name, None), names, sections.get(section))
        if isinstance(limit, int | float) and limit <= pause.used:
            return replace(pause, why=pause.why.replace("{limit}", f"{limit:g}"))
    return None


def _directory(store: Store) -> Path:
    return store.home / "pauses" / store.user

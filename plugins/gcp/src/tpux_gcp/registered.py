"""The TPUs that users of a store have registered, with their aliases: each user's `pool/registered.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tpux import TpuxError, UsageError
from tpux.api import machines
from tpux_gcp.labels import NAME

POOL = "tpux-pool"
"""The label of a TPU that a pool may take, whichever store asks; its value is the pool's name."""
_ALIAS = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")


@dataclass(frozen=True)
class Registered:
    """A TPU that a user has registered.

    Attributes:
        alias: what it is called here, its name if it has no other.
        user: the other user of the store who has registered it; "" for this one.
    """

    name: str
    zone: str
    project: str
    alias: str
    user: str = ""

    def is_same(self, other: Registered) -> bool:
        """Return whether another one is the same TPU, whoever has registered it and as what."""
        return (self.name, self.zone, self.project) == (other.name, other.zone, other.project)


_KEYS = ("name", "zone", "project", "alias")
_FILE = "pool/registered.json"


def registered() -> list[Registered]:
    """Return the registered TPUs: this user's, in the order in which they were, then those of other users of the store.

    An alias that one before has is not that of another TPU, which then has its name only.

    Raises:
        TpuxError: the file cannot be read.
    """
    found = list[Registered]()
    for file in machines.published().read(_FILE):
        for one in _parse(file.content) if file.own else _parse_of_another(file.content, file.user):
            if any(other.is_same(one) for other in found):
                continue
            taken = {other.alias for other in found} | ({other.name for other in found} if one.user else set())
            found.append(one if one.alias not in taken else replace(one, alias=one.name))
    return found


def _parse(content: bytes) -> list[Registered]:
    try:
        return [Registered(**{key: str(one[key]) for key in _KEYS}) for one in json.loads(content)]
    except (ValueError, KeyError, TypeError) as error:
        where = str(machines.published().path(_FILE))
        raise TpuxError(f"the registered TPUs cannot be read: {error}", where=where) from error


def _parse_of_another(content: bytes, user: str) -> list[Registered]:
    """Return what another user has registered; nothing if it is not what `register` writes."""
    try:
        every = [replace(one, user=user) for one in _parse(content)]
    except (TpuxError, RecursionError):
        return []
    words = re.compile(r"[-a-z0-9.:]{1,63}")
    return [
        one
        for one in every
        if _ALIAS.fullmatch(one.alias) and NAME.fullmatch(one.name) and words.fullmatch(one.zone + one.project)
    ]


def find_registered(word: str) -> Registered | None:
    """Return the TPU of an alias, or else the one of that name.

    Raises:
        UsageError: several zones have a registered TPU of that name.
        TpuxError: the file cannot be read.
    """
    every = registered()
    if by_alias := [one for one in every if one.alias == word]:
        return by_alias[0]
    found = [one for one in every if one.name == word]
    if len(found) > 1:
        aliases = " or ".join(one.alias for one in found)
        raise UsageError(f"several TPUs called {word} are registered", hint=f"use an alias: {aliases}")
    return found[0] if found else None


def register(tpu: Registered) -> None:
    """Register a TPU; one that is registered already gets the alias.

    Raises:
        UsageError: the alias is not valid, or another TPU has it.
        TpuxError: the file cannot be read.
        OSError: it cannot be written.
    """
    if not _ALIAS.fullmatch(tpu.alias):
        raise UsageError(f"{tpu.alias!r} cannot be an alias", hint="letters, digits and - _ . are allowed")
    if not NAME.fullmatch(tpu.name):
        raise UsageError(f"{tpu.name!r} is not the name of a TPU")
    with _changing() as own:
        for one in registered():
            if one.alias == tpu.alias and not one.is_same(tpu):
                raise UsageError(
                    f"{tpu.alias} is {one.name} in {one.zone} already", hint=f"tpux tpu unregister {tpu.alias}"
                )
            if one.name != tpu.name and tpu.alias == one.name:
                raise UsageError(f"{tpu.alias} is the name of another registered TPU", hint="choose another alias")
            if one.name != tpu.name and tpu.name == one.alias:
                hint = f"tpux tpu alias {one.alias} NEW, which gives {one.name} another alias"
                raise UsageError(f"{tpu.name} is the alias of {one.name}", hint=hint)
        own[:] = [*(one for one in own if not one.is_same(tpu)), tpu]


def unregister(word: str) -> Registered:
    """Forget a registered TPU, by its alias or name; return it.

    Raises:
        UsageError: there is none.
        TpuxError: the file cannot be read.
        OSError: it cannot be written.
    """
    with _changing() as own:
        if (found := find_registered(word)) is None:
            raise UsageError(f"no TPU {word} is registered", hint="`tpux find` shows those that are")
        require_own(found)
        own[:] = [one for one in own if not one.is_same(found)]
    return found


def require_own(tpu: Registered) -> None:
    """Require that this user has registered a TPU.

    Raises:
        UsageError: another one has.
    """
    if tpu.user:
        hint = f"{tpu.user} can type: tpux tpu unregister {tpu.name}"
        raise UsageError(f"{tpu.user} has registered {tpu.name}, not you", hint=hint)


@contextmanager
def _changing() -> Iterator[list[Registered]]:
    """Yield the TPUs that this user has registered, under a lock of all users, and store the list as it then is."""
    published = machines.published()
    with published.changing(_FILE):
        own = [one for file in published.read(_FILE) if file.own for one in _parse(file.content)]
        yield own
        data = [{key: getattr(one, key) for key in _KEYS} for one in own]
        published.write(_FILE, json.dumps(data, indent=1).encode())

"""The TPUs that users of a store have registered, with their aliases: `pool/registered.json` in the store."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tpux import TpuxError, UsageError, api
from tpux_gcp.labels import NAME

POOL = "tpux-pool"
"""The label of a TPU that a pool may take, whichever store asks; its value is the pool's name."""
_ALIAS = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")


@dataclass(frozen=True)
class Registered:
    """A TPU that a user has registered.

    Attributes:
        alias: what it is called here, its name if it has no other.
    """

    name: str
    zone: str
    project: str
    alias: str


def registered() -> list[Registered]:
    """Return the registered TPUs, in the order in which they were.

    Raises:
        TpuxError: the file cannot be read.
    """
    try:
        found = json.loads(_path().read_text())
        return [Registered(**{key: str(one[key]) for key in Registered.__annotations__}) for one in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TpuxError(f"the registered TPUs cannot be read: {error}", where=str(_path())) from error


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
    with _changing() as every:
        for one in every:
            if one.alias == tpu.alias and replace(one, alias="") != replace(tpu, alias=""):
                raise UsageError(
                    f"{tpu.alias} is {one.name} in {one.zone} already", hint=f"tpux tpu unregister {tpu.alias}"
                )
            if one.name != tpu.name and tpu.alias == one.name:
                raise UsageError(f"{tpu.alias} is the name of another registered TPU", hint="choose another alias")
            if one.name != tpu.name and tpu.name == one.alias:
                hint = f"tpux tpu alias {one.alias} NEW, which gives {one.name} another alias"
                raise UsageError(f"{tpu.name} is the alias of {one.name}", hint=hint)
        every[:] = [*(one for one in every if replace(one, alias="") != replace(tpu, alias="")), tpu]


def unregister(word: str) -> Registered:
    """Forget a registered TPU, by its alias or name; return it.

    Raises:
        UsageError: there is none.
        TpuxError: the file cannot be read.
        OSError: it cannot be written.
    """
    with _changing() as every:
        if (found := find_registered(word)) is None:
            raise UsageError(f"no TPU {word} is registered", hint="`tpux find` shows those that are")
        every.remove(found)
    return found


def _path() -> Path:
    return api.home() / "pool" / "registered.json"


@contextmanager
def _changing() -> Iterator[list[Registered]]:
    """Yield the registered TPUs under a lock, and store the list as it then is."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        every = registered()
        yield every
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump([asdict(one) for one in every], file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)

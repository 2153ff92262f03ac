"""Which store this is: `store.json` has its random id and the inode of its directory, which a copy does not have.

The device number is left out: it may be another one after every reboot.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tpux.errors import TpuxError
from tpux.store import files

FILE = "store.json"
FORMAT = 1
"""The format of the store. A store of a newer format is refused."""


@dataclass(frozen=True)
class Identity:
    """What `store.json` says.

    Attributes:
        id: the store's random id.
        inode: that of the store's directory; None if a tpux has written the file that did not record it.
    """

    id: str
    inode: int | None = None


class MisplacedStoreError(TpuxError):
    """The store is in another directory than it was made in, and the user has not said why."""


def read(home: Path, name: str = FILE) -> Identity | None:
    """Return what `store.json`, or the file of that name which a shared store has, says; None if the store is new.

    Raises:
        TpuxError: the file is corrupt, or of a newer format.
    """
    path = home / name
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        data = json.loads(content)
    except ValueError:
        data = None
    data = data if isinstance(data, dict) else {}
    store_format, store_id = data.get("format"), data.get("id")
    if isinstance(store_format, int) and store_format > FORMAT:
        raise TpuxError(
            f"the store has format {store_format}, and this tpux reads format {FORMAT} at most",
            where=str(path),
            hint="a newer tpux has written it: pip install -U tpux-core",
        )
    if store_format != FORMAT or not isinstance(store_id, str) or not re.fullmatch("[0-9a-f]{8}", store_id):
        raise lost(home, "the file that identifies this store is corrupt")
    inode = data.get("inode")
    return Identity(store_id, inode if isinstance(inode, int) else None)


def write(home: Path, store_id: str, *, in_place: bool = True) -> None:
    """Replace `store.json`.

    Args:
        home: the store's directory.
        store_id: the store's id.
        in_place: record that the store's directory is this one; otherwise it is out of use, as a copy is.

    Raises:
        OSError: it cannot be written.
    """
    inode = home.stat().st_ino if in_place else 0
    files.write_atomic(home / FILE, files.dump({"format": FORMAT, "id": store_id, "inode": inode}))


def misplaced(home: Path) -> str:
    """Return why nothing may be done with the jobs of a store, and what the user can type; "" if it is in its place.

    Raises:
        TpuxError: `store.json` is corrupt, or of a newer format.
        OSError: the directory cannot be read.
    """
    if (identity := read(home)) is None:
        return ""
    if identity.inode in {None, home.stat().st_ino}:
        return ""
    return (
        "the store was moved, copied or restored from a backup, so nothing is done with its jobs\n"
        "`tpux store moved` if no other copy of it is in use: the jobs and their machines continue from here; "
        "`tpux store copied` if the original is in use: it has the jobs and their machines, and their records are set "
        "aside here"
    )


def require_in_place(home: Path) -> None:
    """Refuse to do anything with the jobs of a store that is in another directory than it was made in.

    Raises:
        MisplacedStoreError: it is, and the user has not said why.
        TpuxError: `store.json` is corrupt, or of a newer format.
    """
    if why := misplaced(home):
        message, hint = why.split("\n")
        raise MisplacedStoreError(message, where=str(home), hint=hint)


def lost(home: Path, what: str) -> TpuxError:
    """Return the error for a store whose id cannot be read.

    Args:
        home: the store's directory.
        what: what is wrong with `store.json`.
    """
    hint = (
        f'restore it from a backup, or write {{"format": {FORMAT}, "id": "..."}} into it: the id is the label'
        " tpux-store of your TPUs, and begins the names in ~/.tpux/runs on the workers"
    )
    return TpuxError(what, where=str(home / FILE), hint=hint)

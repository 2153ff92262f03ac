"""The cloud's memory: one SQLite file, so that a kill at any instruction leaves the last whole change."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tpux import TpuxError

_SCHEMA = "CREATE TABLE IF NOT EXISTS record (kind TEXT, name TEXT, body TEXT, PRIMARY KEY (kind, name))"
Record = TypeVar("Record", bound=BaseModel)


class Store:
    """Records by kind and name.

    Args:
        path: the file; made when it is not there.

    Raises:
        TpuxError: the file is there and is no state of an emulator.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Autocommit: each change is a transaction. A killed process loses none; a lost power may.
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise self._corrupt(str(error)) from error

    def put(self, kind: str, name: str, record: BaseModel) -> None:
        """Remember the record in place of the one of that name."""
        self._db.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", (kind, name, record.model_dump_json()))

    def delete(self, kind: str, name: str) -> None:
        """Forget a record; nothing happens when there is none."""
        self._db.execute("DELETE FROM record WHERE kind = ? AND name = ?", (kind, name))

    def load(self, kind: str, model: type[Record]) -> dict[str, Record]:
        """All records of a kind by name.

        Raises:
            TpuxError: one of them cannot be read.
        """
        try:
            rows = self._db.execute("SELECT name, body FROM record WHERE kind = ? ORDER BY rowid", (kind,)).fetchall()
            return {name: model.model_validate_json(body) for name, body in rows}
        except (sqlite3.DatabaseError, ValidationError) as error:
            raise self._corrupt(str(error).splitlines()[0]) from error

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _corrupt(self, why: str) -> TpuxError:
        return TpuxError(
            f"the emulator cannot read its state: {why}",
            where=str(self._path),
            hint="`tpux emulator reset` forgets it and starts with an empty cloud",
        )

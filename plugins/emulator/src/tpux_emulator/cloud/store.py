"""Persistent records in an SQLite file. A process that is killed at any time loses no completed change."""

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
        path: the file; created if it does not exist.

    Raises:
        TpuxError: the file exists and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Autocommit: each change is a transaction. It survives the process, but not necessarily a power failure.
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise self._corrupt(str(error)) from error

    def put(self, kind: str, name: str, record: BaseModel) -> None:
        """Insert or replace a record."""
        self._db.execute("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", (kind, name, record.model_dump_json()))

    def delete(self, kind: str, name: str) -> None:
        """Delete a record, if it exists."""
        self._db.execute("DELETE FROM record WHERE kind = ? AND name = ?", (kind, name))

    def load(self, kind: str, model: type[Record]) -> dict[str, Record]:
        """Return all records of a kind by name.

        Raises:
            TpuxError: a record cannot be read.
        """
        try:
            rows = self._db.execute("SELECT name, body FROM record WHERE kind = ? ORDER BY rowid", (kind,)).fetchall()
            return {name: model.model_validate_json(body) for name, body in rows}
        except (sqlite3.DatabaseError, ValidationError) as error:
            raise self._corrupt(str(error).splitlines()[0]) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _corrupt(self, why: str) -> TpuxError:
        return TpuxError(
            f"the emulator cannot read its state: {why}",
            where=str(self._path),
            hint="delete it with `tpux emulator reset`; the next start has an empty cloud",
        )

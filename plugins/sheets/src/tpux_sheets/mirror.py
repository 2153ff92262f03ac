"""The rows that are to be written to a spreadsheet: a file each, below `sheets/USER/` in the directory of the store."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tpux import api
from tpux.api.machines import clock_rate
from tpux_sheets.section import COLUMNS, SheetsSection

PROGRAM = Path(__file__).with_name("write_rows.py")
_children: list[subprocess.Popen[bytes]] = []
_reported: dict[Path, str] = {}


class Mirror:
    """What is to be written to one sheet.

    Args:
        section: names the sheet.
        user: whose jobs they are; others may share the store.
    """

    def __init__(self, section: SheetsSection, user: str) -> None:
        self._section = section
        match = re.search(r"/d/([\w-]+)", section.spreadsheet)
        self._id = match[1] if match else section.spreadsheet
        name = json.dumps([section.api_url, self._id, section.worksheet])
        self._directory = api.home() / "sheets" / user / hashlib.sha256(name.encode()).hexdigest()[:16]

    def put(self, tpu: str, cells: Mapping[str, str], *, released: bool) -> None:
        """Store durably what the row of a TPU is to be; it replaces what has not been written yet.

        Args:
            tpu: its name, which selects the row.
            cells: by column.
            released: the user's name is removed, if the row still has it.
        """
        row = {"tpu": tpu, "cells": {**cells}, "released": released}
        self._store("pending", hashlib.sha256(tpu.encode()).hexdigest()[:16], json.dumps(row))

    def held(self, job: str) -> str | None:
        """Return the TPU whose row says that a job has it."""
        with suppress(FileNotFoundError):
            return (self._directory / "held" / job).read_text() or None
        return None

    def hold(self, job: str, tpu: str | None) -> None:
        """Note the TPU whose row says that a job has it."""
        if tpu:
            self._store("held", job, tpu)
        else:
            (self._directory / "held" / job).unlink(missing_ok=True)

    def waits(self) -> bool:
        """Return whether there is a row that has not been written."""
        for name in ("pending", "sending"):
            with suppress(FileNotFoundError):
                if any((self._directory / name).iterdir()):
                    return True
        return False

    def write(self) -> None:
        """Start a process that writes the rows; if one is at work, the new one ends at once.

        It outlives the supervisor, which neither waits for it nor imports gspread. Its task has no secret: the key
        file's path is in it.

        Raises:
            OSError: no process can be started.
        """
        _children[:] = [child for child in _children if child.poll() is None]
        columns = {**COLUMNS, **self._section.columns}
        task = {
            "directory": str(self._directory),
            "spreadsheet": self._id,
            "worksheet": self._section.worksheet,
            "credentials": str(Path(self._section.credentials).expanduser()),
            "columns": columns,
            "batch": self._section.batch,
            "api_url": self._section.api_url,
            "clock_rate": clock_rate(),
        }
        child = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _children.append(child)

    def new_problem(self) -> str:
        """Return why the last try to write failed, "" if it did not or this was returned before."""
        problem = ""
        with suppress(OSError, ValueError, AttributeError):
            problem = str(json.loads((self._directory / "state.json").read_text()).get("error", ""))
        known, _reported[self._directory] = _reported.get(self._directory, ""), problem
        return problem if problem != known else ""

    def _store(self, directory: str, name: str, text: str) -> None:
        (api.home() / "sheets").mkdir(parents=True, exist_ok=True)
        for needed in (directory, "pending", "sending"):
            (self._directory / needed).mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._directory / f".{directory}-{name}"
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._directory / directory / name)

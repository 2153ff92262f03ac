"""Writes rows to a spreadsheet; a program of its own, with nothing of tpux, so that it is small while it waits.

Its argument is the task as JSON. It collects what is stored within `batch` seconds, and writes that with two requests
(one that reads the sheet, one that writes cells; a third one if rows are new) in a child of its own, the only process
that imports gspread. A failed try is repeated for `KEEP`. A lock lets one process at a time write to a sheet; a row
that was stored while the last one was ending is seen after the lock was released.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gspread import Worksheet

DELAYS = (10.0, 30.0, 60.0, 300.0, 900.0)
"""Seconds before a try after one, two, ... failed ones: the API's limit is one of requests a minute."""
KEEP = 7 * 86400.0
"""Seconds after which a row that cannot be written is dropped."""
TIMEOUT = 120
"""Real seconds that a try may take."""


def main() -> int:
    """Do the task; return the exit code."""
    task = json.loads(sys.argv[1])
    directory = Path(task["directory"])
    while waiting(directory):
        with (directory / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return 0
            work(directory, task)
    return 0


def waiting(directory: Path) -> list[Path]:
    """Return the files of the rows that are to be written."""
    return [*(directory / "sending").iterdir(), *(directory / "pending").iterdir()]


def work(directory: Path, task: Mapping[str, object]) -> None:
    """Write until nothing is left."""
    rate, failures = float(str(task["clock_rate"])), 0
    time.sleep(float(str(task["batch"])) / rate)
    while waiting(directory):
        for path in (directory / "pending").iterdir():  # a newer row replaces the one whose try has failed
            path.replace(directory / "sending" / path.name)
        taken = [*(directory / "sending").iterdir()]
        rows = [json.loads(path.read_text()) for path in taken]
        error = attempt(partial(write, task, rows))
        note(directory, error)
        if not error:
            failures = 0
            for path in taken:
                path.unlink()
            continue
        for path in taken:
            if (time.time() - path.stat().st_mtime) * rate > KEEP:
                path.unlink()
        time.sleep(DELAYS[min(failures, len(DELAYS) - 1)] / rate)
        failures += 1


def note(directory: Path, error: str) -> None:
    """Write how the last try ended, for the supervisor's report."""
    new = directory / ".state.json"
    new.write_text(json.dumps({"error": error, "at": time.time()}))
    new.replace(directory / "state.json")


def attempt(call: Callable[[], str]) -> str:
    """Call a function in a child process that is killed after `TIMEOUT`. Returns its error, "" if there is none."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        signal.alarm(TIMEOUT)
        try:
            error = call()
        except BaseException as raised:  # noqa: BLE001  (a process of its own: it says what it can)
            error = f"{type(raised).__name__}: {raised}"
        os.write(writing, error.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        error = file.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"no answer within {TIMEOUT} s" if os.WTERMSIG(status) == signal.SIGALRM else "the writer was killed"
    return error


def write(task: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows to the sheet. Returns why that failed, "" if it did not."""
    import gspread
    from google.auth.exceptions import GoogleAuthError
    from gspread.exceptions import APIError, GSpreadException
    from gspread.http_client import HTTPClient
    from requests import RequestException, Response

    class At(HTTPClient):
        """Sends requests to `api_url`."""

        def request(self, method: str, endpoint: str, *args: object, **kwargs: object) -> Response:
            there = endpoint.replace("https://sheets.googleapis.com", str(task["api_url"]).rstrip("/"), 1)
            return super().request(method, there, *args, **kwargs)  # type: ignore[arg-type]

    try:
        client = gspread.service_account(str(task["credentials"]), http_client=At)
        client.set_timeout(30)
        book = client.open_by_key(str(task["spreadsheet"]))
        name = task["worksheet"]
        sheet = book.get_worksheet(0) if name is None else book.worksheet(str(name))
        columns = {str(key): str(head) for key, head in dict(task["columns"]).items()}  # type: ignore[call-overload]
        update(sheet, columns, rows)
    except APIError as error:
        return f"the Sheets API answers {error.code}: {error.error.get('message', '')}"
    except GoogleAuthError as error:
        return f"the key {task['credentials']} is not accepted: {error.args[0] if error.args else error}"
    except PermissionError:
        return f"the account of {task['credentials']} may not edit the spreadsheet: share it with that account"
    except GSpreadException as error:
        return f"the spreadsheet has no such sheet: {type(error).__name__} {error}"
    except (OSError, ValueError, RequestException) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def update(sheet: Worksheet, columns: Mapping[str, str], rows: Sequence[Mapping[str, object]]) -> None:
    """Write the cells of rows; other columns, other rows and what it does not understand stay as they are.

    Args:
        sheet: the sheet.
        columns: what heads each column.
        rows: each has `tpu`, `cells` and `released`.
    """
    from gspread.utils import ValueInputOption, rowcol_to_a1

    raw = ValueInputOption.raw  # a job's name that begins with = is no formula
    values = sheet.get_all_values()
    if not any(cell.strip() for line in values for cell in line):
        sheet.update([[*columns.values()]], "A1", value_input_option=raw)
        values = [[*columns.values()]]
    head, places = find_head(values, columns)
    known = dict[str, int]()
    for below, line in enumerate(values[head + 1 :], head + 1):
        known.setdefault(cell_of(line, places["tpu"]), below)
    cells: list[dict[str, object]] = []
    new: list[list[str]] = []
    for row in rows:
        number = known.get(str(row["tpu"]))
        wanted = wanted_cells(row, None if number is None else values[number], places)
        if number is None and wanted:
            by_place = {places[key]: value for key, value in wanted.items() if key in places}
            new.append([by_place.get(place, "") for place in range(max(by_place) + 1)])
        elif number is not None:
            cells += [
                {"range": rowcol_to_a1(number + 1, places[key] + 1), "values": [[value]]}
                for key, value in wanted.items()
                if key in places and cell_of(values[number], places[key]) != value
            ]
    if cells:
        sheet.batch_update(cells, value_input_option=raw)
    if new:
        sheet.append_rows(new, value_input_option=raw, table_range=rowcol_to_a1(head + 1, 1))


def wanted_cells(row: Mapping[str, object], line: Sequence[str] | None, places: Mapping[str, int]) -> dict[str, str]:
    """Return what is to be written for a row, by column; nothing if it is another user's by now.

    Args:
        row: as stored.
        line: the cells of the TPU's row in the sheet, None if there is none.
        places: where each column is.
    """
    own: dict[str, str] = dict(row["cells"])  # type: ignore[call-overload]
    if row["released"]:
        if line is None or is_of_another(line, places, own):
            return {}
        own |= {"user": "", "job": ""}
    return {"tpu": str(row["tpu"]), **own}


def find_head(values: Sequence[Sequence[str]], columns: Mapping[str, str]) -> tuple[int, dict[str, int]]:
    """Return the row that heads the columns, and where each one is that the sheet has.

    Raises:
        ValueError: no row has the column of the TPUs' names.
    """
    for number, line in enumerate(values):
        heads = [str(cell).strip().casefold() for cell in line]
        places = {key: heads.index(head.casefold()) for key, head in columns.items() if head.casefold() in heads}
        if "tpu" in places:
            return number, places
    raise ValueError(f"no row of the sheet has a cell {columns['tpu']!r}, which heads the names of TPUs")


def cell_of(line: Sequence[str], place: int) -> str:
    """Return a cell, "" of a row that is too short."""
    return str(line[place]).strip() if place < len(line) else ""


def is_of_another(line: Sequence[str], places: Mapping[str, int], row: Mapping[str, str]) -> bool:
    """Return whether a row has another user or another job than the one that has released its machines."""
    found = {key: cell_of(line, places[key]) for key in ("user", "job") if key in places}
    return any(value and value != row[key] for key, value in found.items())


if __name__ == "__main__":
    sys.exit(main())

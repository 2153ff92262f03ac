"""What users request of a job: `requests/NNNNNN.json`, one file each, which the job's turn applies in order.

The file of a restart has two requests, a stop and a resume. Its action is one that is no request: a supervisor that
does not know of the second skips the file, which waits for a newer one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from tpux.errors import UsageError
from tpux.store import files, identity, locks, open_jobs

if TYPE_CHECKING:
    from tpux.model.events import RequestAccepted
    from tpux.model.json import JsonValue
    from tpux.model.states import RequestAction
    from tpux.store.record import Record

DIRECTORY = "requests"
STARTS = frozenset({"resume", "rerun", "setup"})
"""The requests that start a job that has ended."""
_RESTART = "restart"
"""The action of a file of two requests, a stop and what follows it."""
_THEN = "then"
"""The key of the second request of a file, whose number is that of the file; the first one's is the one before."""
STOPPING = "stop requested"
"""The `why` of a job whose programs are being terminated."""
STOPPED = "stopped by user"
"""The `why` of a job that was stopped and whose programs have ended."""
SUCCEEDED = "its program had ended before the stop"
"""The `why` of a job that had succeeded when it was to be stopped."""


def write(
    record: Record,
    action: RequestAction,
    then: tuple[RequestAction, Mapping[str, JsonValue]] | None = None,
    /,
    **options: JsonValue,
) -> int:
    """Write a request to a job, after those that have not taken effect yet.

    Args:
        record: the job.
        action: what is requested.
        then: with a stop, what is requested next, with its options: either both are stored or none is.
        options: the options of the action, the fields of `tpux.model.events.RequestAccepted`.

    Returns:
        The request's number: `State.last_request_number` is at least this once it has taken effect, or a later one
        has replaced it.

    Raises:
        UsageError: the job is being deleted, so nothing can be requested but its deletion; or it was deleted.
        MisplacedStoreError: the store was moved or copied, and the user has not said which.
        TpuxError: the job cannot be read.
        OSError: it could not be written.
    """
    identity.require_in_place(record.home)
    directory, lock = record.directory / DIRECTORY, record.lock.path.with_name(f"{record.lock.path.name}.requests")
    try:
        with locks.held(lock, what=f"the requests of job {int(record.id)}"):
            directory.mkdir(exist_ok=True, mode=0o700)
            number = latest(record.directory)  # before the state: a request that is removed now is in the state
            if action != "delete":
                require_not_deleted(record)
            number = max(number, record.refresh().last_request_number) + (1 if then is None else 2)
            data: dict[str, JsonValue] = {"action": action, "options": dict(options)}
            if then is not None:
                data["action"] = _RESTART
                data[_THEN] = {"action": then[0], "options": dict(then[1])}
            if action in STARTS or then is not None:  # before the supervisor has read it, which may take long
                open_jobs.mark(open_jobs.mark_of(str(record.directory)))
            files.write_atomic(directory / f"{number:06}.json", files.dump(data))
    except FileNotFoundError as error:
        raise UsageError(f"job {int(record.id)} was deleted") from error
    return number


def require_not_deleted(record: Record) -> None:
    """Refuse a request to a job that is being deleted.

    Raises:
        UsageError: its deletion was requested.
        TpuxError: the job cannot be read.
    """
    if record.refresh().last_request.get("action") == "delete" or any(r.action == "delete" for r in pending(record)):
        job = int(record.id)
        raise UsageError(f"job {job} is being deleted", hint=f"see what it waits for: tpux show {job}")


def pending(record: Record) -> list[RequestAccepted]:
    """Return the requests that have not taken effect, in order, as the events that are written when they have.

    A file that does not hold a valid request is skipped.

    Raises:
        TpuxError: the job cannot be read.
    """
    numbers = _numbers(record.directory)
    if not numbers:
        return []
    # The holder of the lock has the current state, and may be writing it in another thread.
    last = (record.state if record.lock.held else record.refresh()).last_request_number
    found = [_read(record.directory / DIRECTORY, number) for number in numbers if number > last]
    return [request for requests in found for request in requests if request.number > last]


def latest(directory: Path) -> int:
    """Return the number of the last request whose file is in a job's directory; 0 if there is none."""
    return max(_numbers(directory), default=0)


def has_finished(record: Record) -> bool:
    """Return whether a job has ended and no pending request starts it again.

    Raises:
        TpuxError: the job cannot be read.
    """
    restarts = any(request.action in STARTS for request in pending(record))
    return record.refresh().ended and not restarts


def remove_applied(record: Record) -> None:
    """Remove the files of the requests that have taken effect, or that a later one has replaced."""
    for number in _numbers(record.directory):
        if number <= record.state.last_request_number:
            with suppress(OSError):  # it is never applied again: its number is in the state
                (record.directory / DIRECTORY / f"{number:06}.json").unlink()


def _numbers(directory: Path) -> list[int]:
    try:
        names = os.listdir(f"{directory}/{DIRECTORY}")  # noqa: PTH208  (at each turn of each job)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())


def _read(directory: Path, number: int) -> list[RequestAccepted]:
    """Return the requests of the file of this number; none if it has gone, or one that it holds is not valid."""
    if (data := files.load(directory / f"{number:06}.json")) is None:
        return []
    then = data.get(_THEN)
    described = {number - 1: {**data, "action": "stop"}, number: then} if isinstance(then, dict) else {number: data}
    found = [_build(one, each) for each, one in described.items()]
    return [one for one in found if one] if all(found) else []


def _build(data: Mapping[str, JsonValue], number: int) -> RequestAccepted | None:
    from tpux.model import events, json
    from tpux.model.states import RequestAction

    options = data.get("options")
    options = options if isinstance(options, dict) else {}
    known = {field.name for field in fields(events.RequestAccepted)} - {"number"}
    action = data.get("action")
    if not isinstance(action, str) or action not in get_args(RequestAction) or not options.keys() <= known:
        return None  # a newer tpux requests something that this one does not know
    try:
        return json.build(events.RequestAccepted, {**options, "action": action, "number": number})
    except ValueError:
        return None

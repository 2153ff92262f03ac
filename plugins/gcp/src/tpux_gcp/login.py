"""How long a job waits for a login that was valid and is not any more: it goes on by itself once the user renews it.

A Workspace login expires every day or week (`invalid_rapt`). That is no reason to give a job up that had one.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tpux import Denied, ProvisionRequest, Waiting
from tpux_gcp.errors import Problem
from tpux_gcp.request import deny, now
from tpux_gcp.spec import section_of

FILE = "login.json"
"""In the job's directory, from the first answer of the API on: since when it refuses the login, null if it does not."""
_log = logging.getLogger(__name__)


def accepted(directory: Path) -> None:
    """Note that the API has accepted the login."""
    if _read(directory) != (True, None):
        _write(directory, None)


def refused(request: ProvisionRequest, problem: Problem, waiting: Waiting) -> Waiting | Denied:
    """Return whether the job waits for the login to be renewed: it had a valid one, not longer than `auth_timeout` ago.

    Args:
        request: the job's request.
        problem: what the API, or google-auth, says of the login.
        waiting: the answer that the next step comes later.
    """
    was_valid, since = _read(request.directory)
    if not was_valid:
        return deny(problem)
    if since is None or since > now():  # the clock was set back
        since = now()
        _write(request.directory, since)
    return wait_until_renewed(request, problem, waiting, since)


def wait_until_renewed(request: ProvisionRequest, problem: Problem, waiting: Waiting, since: float) -> Waiting | Denied:
    """Return whether the job waits for the login to be renewed, which was refused since then."""
    limit = section_of(request.tpu).auth_timeout
    if now() - since >= limit:
        return deny(replace(problem, message=f"{problem.message}; not renewed within {limit:.0f} s"))
    why = f"{problem.message}; waiting until the login is renewed, for {limit:.0f} s at most"
    return replace(waiting, why=why, hint=problem.hint)


def _read(directory: Path) -> tuple[bool, float | None]:
    """Return whether the API has ever accepted the login, and since when it refuses it."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        since = json.loads((directory / FILE).read_text(encoding="utf-8")).get("refused_since")
        return True, None if since is None else float(since)
    return False, None


def _write(directory: Path, since: float | None) -> None:
    path = directory / FILE
    new = path.with_suffix(".new")
    try:
        new.write_text(json.dumps({"refused_since": since}), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        _log.warning("cannot note whether the login is valid: %s", error)

"""What follows when a job's turn raises an error: the next try, or the failure of the job."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tpux.backoff import Backoff
from tpux.descriptors import NoDescriptorError, waiting
from tpux.errors import TpuxError, plain_reason
from tpux.lifecycle import policy
from tpux.lifecycle.advance import JobController
from tpux.lifecycle.end import may_remove_record, remove_record
from tpux.lifecycle.open import JobNotOpenedError
from tpux.lifecycle.turn import Turn
from tpux.model.failures import Failure
from tpux.plugin.entrypoints import reason
from tpux.plugin.guard import PluginError, UnusablePluginError
from tpux.store.locks import UnusableLocksError
from tpux.threads import NoThreadError

_log = logging.getLogger(__name__)
R = TypeVar("R")

MAX_ERRORS = 8
"""Turns in a row that may raise before the job fails."""
ERROR_BACKOFF = Backoff(first=1.0, cap=60.0)
START_TRIES = 14
"""How often an error of this machine is retried when a supervisor starts: for about a minute."""
FORCE_TRIES = 6
"""Turns in a row that may raise, for half a minute, before the record of a job is removed that is deleted by force."""
OS_ERROR_BACKOFF = Backoff(first=1.0, cap=5.0)
"""For errors of this machine, such as a full disk: they end at any moment, and a try costs nothing."""


def handle_error(controller: JobController, error: BaseException) -> float | None:
    """Log an error that a job's turn raised, say so in its `why`, and fail the job if its turns keep raising.

    Before it fails, its programs are terminated.

    Retried without end are errors of this machine, errors of a job that has ended or is stopping (its machines must
    still be released), and of one that holds machines and cannot be opened, or has an unusable plugin: its program may
    be running well, and whoever repairs the installation repairs the job. `policy.PLUGIN_TRIES` says how often a
    plugin's hook is called that fails.

    The record of a job that is deleted even if its machines cannot be released (`tpux delete --force`) is removed after
    `FORCE_TRIES` errors of its release, or of opening it.

    Returns:
        The seconds until the job's next turn; None if its record was removed.
    """
    turn, errors = controller.begin(), controller.errors
    errors.problems += 1
    is_os_error = isinstance(error, (OSError, MemoryError))
    number, tries = _log_and_count(turn, error)
    if is_os_error or _is_repairable(turn, error) or turn.state.ended or turn.state.state == "stopping":
        tries = None
    delay = (OS_ERROR_BACKOFF if is_os_error else ERROR_BACKOFF).delay(number - 1)
    try:
        release_fails = turn.state.ended or isinstance(error, JobNotOpenedError)
        if release_fails and not is_os_error and errors.problems >= FORCE_TRIES and may_remove_record(turn):
            remove_record(turn, _message(turn, error))
            return None
        if tries is None or number < tries:
            _write_why(turn, error, f"retrying, {number} of {tries}" if tries else "retrying")
            return delay
        controller.fail(_failure(error), str(error))
        errors.problems = 0
    except (TpuxError, OSError):
        _log.exception("job %s: the error cannot be written", turn.record.directory.name)
        return delay
    return 0.0


def _log_and_count(turn: Turn, error: BaseException) -> tuple[int, int | None]:
    """Log an error, and count it.

    Returns:
        Which one in a row it is, and with how many the job fails; None if with none.
    """
    name, number = turn.record.directory.name, turn.errors.problems
    tries: int | None = MAX_ERRORS
    if isinstance(error, PluginError):
        turn.errors.plugin_errors[error.plugin, error.hook] += 1
        number = turn.errors.plugin_errors[error.plugin, error.hook]
        tries = policy.PLUGIN_TRIES.get(error.hook, MAX_ERRORS)
        _log.error("job %s: error %d in a row: %s", name, number, error.message)  # the manager logs the traceback
    else:
        first = str(error) != turn.errors.last_error  # its traceback says nothing new later, and may come for days
        turn.errors.last_error = str(error)
        _log.error("job %s: error %d in a row: %s", name, number, error, exc_info=error if first else None)
    if turn.errors.failing is not None:  # the plugin's tries are spent: these are errors of the termination
        return turn.errors.problems, MAX_ERRORS
    return number, tries


def _failure(error: BaseException) -> Failure:
    if isinstance(error, PluginError):
        return Failure("plugin", evidence=error.message, hint=error.hint)
    return Failure("unknown", evidence=f"{MAX_ERRORS} errors in a row: {error}", hint="see the supervisor's log")


def _is_repairable(turn: Turn, error: BaseException) -> bool:
    """Return whether the job holds machines and can be continued once the installation or its config is repaired."""
    has_machines = turn.state.requested or turn.state.attempt_open
    return has_machines and isinstance(error, (UnusablePluginError, JobNotOpenedError))


def _write_why(turn: Turn, error: BaseException, next_try: str) -> None:
    """Write the error as what the job waits for.

    Args:
        turn: for what follows the error.
        error: what its turn raised.
        next_try: what follows.

    Raises:
        OSError: it cannot be written; after an error of this machine `turn.errors.unwritten` has the text.
    """
    message, hint = _message(turn, error), ""
    if isinstance(error, UnusablePluginError):
        message = f"{message}; {error.remedy}"
    if turn.state.ended and turn.state.release_at is not None:
        message = f"the machines cannot be released: {message}"
    continues = isinstance(error, UnusablePluginError) and turn.state.state == "stopping"  # without the plugin
    if isinstance(error, TpuxError) and _is_repairable(turn, error) and not continues:
        hint = error.hint
    text = f"{message}; {next_try}"
    turn.errors.unwritten = text if isinstance(error, OSError) else ""
    turn.waiting(text, hint=hint)
    turn.errors.unwritten = ""


def retry(call: Callable[[], R]) -> R:
    """Return what a call returns, and repeat it while it raises an error of this machine, for about a minute.

    Raises:
        OSError, UnusableLocksError: the last try failed too.
    """
    for number in range(START_TRIES):
        try:
            return call()
        except (OSError, UnusableLocksError) as error:
            _log.error("the supervisor cannot start yet, and tries again: %s", error, exc_info=error)
            time.sleep(OS_ERROR_BACKOFF.delay(number))
    return call()


def _message(turn: Turn, error: BaseException) -> str:
    if isinstance(error, JobNotOpenedError) and error.where:
        return f"{error.where}: {error.message}"
    if isinstance(error, TpuxError):
        return error.message
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"the disk is full: free some space in {turn.store.home}"
    if (isinstance(error, OSError) and error.errno == errno.EMFILE) or isinstance(error, NoDescriptorError):
        return waiting()
    if isinstance(error, (NoThreadError, MemoryError)):
        return f"this machine is short of memory: {plain_reason(error)}"
    if isinstance(error, OSError):
        return f"a file of the job cannot be read or written: {plain_reason(error)}"
    return f"an error in tpux, which its log has in full: {reason(error)}"

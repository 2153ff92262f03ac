"""Every `TPUX_*` name: those that tpux reads, and those that a program on a worker finds set."""

from __future__ import annotations

import getpass
import os
import re
from pathlib import Path

from tpux.errors import UsageError

HOME = "TPUX_HOME"
USER = "TPUX_USER"
DISABLED_PLUGINS = "TPUX_DISABLED_PLUGINS"
CLOCK_RATE = "TPUX_CLOCK_RATE"
GCP_ENDPOINT = "TPUX_GCP_ENDPOINT"
FOR_SUPERVISOR = (DISABLED_PLUGINS, CLOCK_RATE, GCP_ENDPOINT)
"""What a supervisor takes over from a command that a program inside a job starts it with."""

# What a program is told (docs/program-environment.md).
JOB_ID = "TPUX_JOB_ID"
ATTEMPT = "TPUX_ATTEMPT"
STAGE = "TPUX_STAGE"
RESUME = "TPUX_RESUME"
WORKER = "TPUX_WORKER"
NUM_WORKERS = "TPUX_NUM_WORKERS"
SLICE = "TPUX_SLICE"
NUM_SLICES = "TPUX_NUM_SLICES"
COORDINATOR_ADDRESS = "TPUX_COORDINATOR_ADDRESS"
OUTPUT_DIR = "TPUX_OUTPUT_DIR"
PREVIOUS_OUTPUT_DIR = "TPUX_PREVIOUS_OUTPUT_DIR"
RUN_ID = "TPUX_RUN_ID"
RUN_HOME = "TPUX_RUN_HOME"
SECRET_PREFIX = "TPUX_SECRET_"  # noqa: S105  (a prefix of names, no secret)


def home() -> Path:
    """Where jobs are kept: `$TPUX_HOME`, or `~/.tpux`."""
    return Path(os.environ.get(HOME) or "~/.tpux").expanduser().absolute()


def user() -> str:
    """Whose jobs these are: `$TPUX_USER`, or the login name.

    Raises:
        UsageError: there is none, or it could be no directory's name.
    """
    try:
        name = os.environ.get(USER) or getpass.getuser()
    except (KeyError, OSError) as error:
        raise UsageError("this account has no name", hint=f"set {USER} to one") from error
    if not re.fullmatch(r"[^./\s\0*?\[\\][^/\s\0*?\[\\]*", name):
        hint = f"set {USER} to a name without blanks, / * ? [ \\ that begins with no dot"
        raise UsageError(f"no user can be called {name!r}", where=USER, hint=hint)
    return name


def disabled_plugins() -> frozenset[str]:
    """The names in `$TPUX_DISABLED_PLUGINS`, separated by commas or blanks."""
    return frozenset(os.environ.get(DISABLED_PLUGINS, "").replace(",", " ").split())


def clock_rate() -> float:
    """How many seconds of tpux' time pass in one real second: `$TPUX_CLOCK_RATE`, or 1.

    Raises:
        UsageError: it is not a number above 0.
    """
    word = os.environ.get(CLOCK_RATE) or "1"
    try:
        rate = float(word)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UsageError(f"{word!r} is no number above 0", where=CLOCK_RATE, hint="1 is the clock's own speed")
    return rate

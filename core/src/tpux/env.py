"""Environment variables: those that tpux reads, that a supervisor is started with, and that programs get.

What the environment determines about a job (project, zone, credentials, login user, PATH) is read by the hook `resolve`
in the shell that writes the job's config, and stored as `Job.resolved`, by plugin. Nothing in a job's life reads the
environment afterwards (`tests/test_environment.py`). The supervisor is started with the variables below, and deletes
all others from its own environment, since libraries such as google-auth read it, too.
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
import stat
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from tpux.errors import UsageError

HOME = "TPUX_HOME"
USER = "TPUX_USER"
DISABLED_PLUGINS = "TPUX_DISABLED_PLUGINS"
CLOCK_RATE = "TPUX_CLOCK_RATE"
TRACE = "TPUX_TRACE"
TRACE_HOOKS = "TPUX_TRACE_HOOKS"

SHARED_MARK = "tpux-shared.json"
"""The file in a directory that makes it a store which several users of the machine share (`tpux store share`)."""
USERS = "users"
"""The directory, in a shared store, of the users' own directories: to each of them that is the store."""

# What the script of a check finds set if no program follows.
CHECK_ONLY = "TPUX_CHECK_ONLY"

# What a program on a worker finds set (docs/program-environment.md).
JOB_ID = "TPUX_JOB_ID"
ATTEMPT = "TPUX_ATTEMPT"
STAGE = "TPUX_STAGE"
RESUME = "TPUX_RESUME"
WORKER = "TPUX_WORKER"
RANK = "TPUX_RANK"
NUM_WORKERS = "TPUX_NUM_WORKERS"
SLICE = "TPUX_SLICE"
NUM_SLICES = "TPUX_NUM_SLICES"
COORDINATOR_ADDRESS = "TPUX_COORDINATOR_ADDRESS"
OUTPUT_DIR = "TPUX_OUTPUT_DIR"
PREVIOUS_OUTPUT_DIR = "TPUX_PREVIOUS_OUTPUT_DIR"
RESUME_ARGS = "TPUX_RESUME_ARGS"
ARGS_FILE = "TPUX_ARGS_FILE"
RUN_ID = "TPUX_RUN_ID"
RUN_HOME = "TPUX_RUN_HOME"
CONTAINER_RUN_ID = "TPUX_CONTAINER_RUN_ID"
CONTAINER_RUN_HOME = "TPUX_CONTAINER_RUN_HOME"
MACHINE_DIR = "TPUX_MACHINE_DIR"
SECRET_PREFIX = "TPUX_SECRET_"  # noqa: S105  (a prefix of names, no secret)
OF_PROGRAMS = (
    JOB_ID,
    ATTEMPT,
    STAGE,
    RESUME,
    WORKER,
    RANK,
    NUM_WORKERS,
    SLICE,
    NUM_SLICES,
    COORDINATOR_ADDRESS,
    OUTPUT_DIR,
    PREVIOUS_OUTPUT_DIR,
    RESUME_ARGS,
    ARGS_FILE,
    RUN_ID,
    RUN_HOME,
    CONTAINER_RUN_ID,
    CONTAINER_RUN_HOME,
    MACHINE_DIR,
    f"{SECRET_PREFIX}*",
)

SUPERVISOR_ENVIRONMENT = (
    "HOME",
    "USER",
    "LANG",
    "LC_*",
    "TZ",
    "PATH",
    "PYTHONPATH",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "SSH_AUTH_SOCK",
    "CLOUDSDK_CONFIG",
    "TPUX_*",
)
"""The variables that a supervisor is started with, `*` for any ending. All others stay in the shell of the command."""

OF_COMMANDS = ("TPUX_GCP_*", TRACE_HOOKS, TRACE)
"""Variables that only commands read, those of plugins in `resolve`, so that they are of no use to a supervisor."""


def supervisor_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a supervisor is started with.

    The variables of a program are left out: a command may run inside a job, and a supervisor with the job's
    `TPUX_RUN_ID` would be ended with it. So is the `LC_CTYPE` that Python itself sets if there is no locale (PEP 538).
    """
    without_locale = not environ.get("LC_ALL") and not environ.get("LANG")
    python_sets = {"LC_CTYPE"} if without_locale and environ.get("LC_CTYPE") == "C.UTF-8" else set()
    return {
        name: value
        for name, value in sorted(environ.items())
        if _matches(name, SUPERVISOR_ENVIRONMENT) and not _matches(name, (*OF_PROGRAMS, *OF_COMMANDS, *python_sets))
    }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(name.startswith(p[:-1]) if p.endswith("*") else name == p for p in patterns)


def user_home() -> Path:
    """Return the user's home directory, which `~` in a config stands for; `~` itself if it is not known."""
    return Path(os.path.expanduser("~"))  # noqa: PTH111  (Path.home() raises an error where this returns "~")


def current_directory() -> Path | None:
    """Return the current directory, None if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def settings_files() -> list[Path]:
    """Return where settings may be: those of the machine, then the user's, in `$TPUX_CONFIG` or as XDG has it."""
    own = os.environ.get("TPUX_CONFIG")
    return [Path("/etc/tpux/config.yaml"), Path(own) if own else _config_directory() / "config.yaml"]


def plugins_directory() -> Path:
    """Return where the user's own plugins may be, each a file."""
    return _config_directory() / "plugins"


def _config_directory() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or user_home() / ".config") / "tpux"


def home() -> Path:
    """Return the directory of the store: `$TPUX_HOME`, or `~/.tpux`; in a store that several users share, this user's.

    Raises:
        UsageError: the home directory that it begins with is not known; or the user's directory in a shared store is
            another user's, or the file system does not say whose it is.
        OSError: the directory in a shared store cannot be made.
    """
    path = given_home()
    return path if (root := shared_root(path)) is None else own_directory(root / USERS, 0o700)


def given_home() -> Path:
    """Return `$TPUX_HOME`, or `~/.tpux`.

    Raises:
        UsageError: the home directory that it begins with is not known.
    """
    given = os.environ.get(HOME) or "~/.tpux"
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError as error:
        hint = f"set {HOME} to an absolute path"
        raise UsageError(f"{HOME}: the home directory in {given} is not known", hint=hint) from error


def shared_root(home: Path) -> Path | None:
    """Return the shared store that a directory is, or of which it is a user's directory; None if there is none.

    Raises:
        OSError: that is not known, so that it may not be used as a store of one user.
    """
    is_users = home.parent.name == USERS
    for root in (home, home.parent.parent) if is_users else (home,):
        try:
            if stat.S_ISREG(os.stat(root / SHARED_MARK).st_mode):  # noqa: PTH116  (called often)
                return root
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError:
            if is_users:
                raise
    return None


def own_directory(parent: Path, mode: int) -> Path:
    """Return the directory in `parent`, which many may write, that is this user's alone; made if there is none.

    It appears with its permissions: a reader finds it readable, or not at all.

    Raises:
        UsageError: the entry with the user's name is not a directory of the user.
        OSError: it cannot be made.
    """
    path = parent / login_name()
    if not os.path.lexists(path):
        import tempfile

        new = Path(tempfile.mkdtemp(dir=parent, prefix=f".{path.name}-"))
        new.chmod(mode)
        try:
            new.rename(path)
        except OSError:  # another process of the user was faster
            new.rmdir()
    hint = f"if a user has made it: sudo rm -r {path}; a network file system must keep the numbers of users"
    foreign = UsageError(f"{path} is not a directory of {path.name}, whose it must be", hint=hint)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (NotADirectoryError, PermissionError) as error:
        raise foreign from error
    try:
        found = os.fstat(handle)
        if found.st_uid != os.geteuid():
            raise foreign
        if stat.S_IMODE(found.st_mode) & 0o777 != mode & 0o777:
            os.fchmod(handle, mode)
    finally:
        os.close(handle)
    if mode & stat.S_ISGID and found.st_gid != parent.stat().st_gid:
        hint = "it must give new directories the group of the directory that they are in (setgid)"
        raise UsageError(f"{path} does not have the group of {parent}: the file system cannot be shared", hint=hint)
    return path


@lru_cache
def account(uid: int) -> str:
    """Return the name of an account. Only an answer is remembered.

    Raises:
        KeyError: it has none, or the directory of accounts does not answer.
    """
    return pwd.getpwuid(uid).pw_name


def login_name() -> str:
    """Return the name of the account that this process has, whatever the environment says.

    Raises:
        UsageError: it has none.
    """
    try:
        return account(os.geteuid())
    except KeyError as error:
        hint = "`id -un` must print it: the machine's directory of accounts may not answer"
        raise UsageError("this account has no user name", hint=hint) from error


def user() -> str:
    """Return the user whose jobs commands act on: `$TPUX_USER`, or the login name.

    Raises:
        UsageError: there is none, or it cannot be the name of a directory; or it is not the login name in a store that
            several users share.
        OSError: it is not known whether they share it.
    """
    try:
        name = os.environ.get(USER) or getpass.getuser()
    except (KeyError, OSError) as error:
        raise UsageError("this account has no user name", hint=f"set {USER} to one") from error
    if shared_root(given_home()) is not None:
        login = login_name()
        if os.environ.get(USER, login) != login:
            message = f"in a store that several users share {USER} must be your login name, {login}"
            raise UsageError(message, where=f"{USER}={name}", hint=f"unset {USER}")
        name = login
    if not re.fullmatch(r"[^./\s\0*?\[\\][^/\s\0*?\[\\]*", name):
        hint = f"set {USER} to a name without blanks and / * ? [ \\ that does not begin with a dot"
        raise UsageError(f"{name!r} is not a valid user name", where=USER, hint=hint)
    return name


def disabled_plugins() -> frozenset[str]:
    """Return the names in `$TPUX_DISABLED_PLUGINS`, which are separated by commas or blanks."""
    return frozenset(os.environ.get(DISABLED_PLUGINS, "").replace(",", " ").split())


def trace() -> bool:
    """Return whether this command writes its calls of hooks to stderr: `$TPUX_TRACE` is 1."""
    return os.environ.get(TRACE, "") not in {"", "0"}


def trace_hooks() -> bool:
    """Return whether the hook calls of the jobs that this command starts are traced: `$TPUX_TRACE_HOOKS` is 1."""
    return os.environ.get(TRACE_HOOKS, "") not in {"", "0"}


def clock_rate() -> float:
    """Return how many seconds of tpux' time pass in one real second: `$TPUX_CLOCK_RATE`, or 1. Since 0.1.

    Raises:
        UsageError: it is not a number above 0.
    """
    text = os.environ.get(CLOCK_RATE) or "1"
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UsageError(f"{text!r} is not a number above 0", where=CLOCK_RATE, hint="1 is real time")
    return rate

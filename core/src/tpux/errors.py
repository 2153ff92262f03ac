"""The exceptions whose messages are for users, and the exit codes of the command."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `tpux`."""

    OK = 0
    ERROR = 1
    USAGE = 2
    JOB_FAILED = 100
    JOB_STOPPED = 103


MASK = "********"
_MIN_MASKED_LENGTH = 4  # masking every occurrence of a shorter secret would make messages unreadable


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text with each of these secrets masked, also as `repr` writes it."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _MIN_MASKED_LENGTH:
            text = text.replace(secret, MASK).replace(repr(secret)[1:-1], MASK)
    return text


class TpuxError(Exception):
    """An error for users: what happened, where, and what to do. Only the command line prints it.

    Args:
        message: what happened, one sentence without a full stop.
        where: the place: `file:line:column`, a job, a worker.
        hint: what the user can do about it.
        exit_code: the exit code of the command.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "", exit_code: int = Exit.ERROR) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  hint: {self.hint}" if self.hint else head

    def messages(self) -> list[str]:
        """Return what is printed, a message for each mistake."""
        return [str(self)]


class UsageError(TpuxError):
    """A mistake in the command line or a config: exit code 2."""

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message, where=where, hint=hint, exit_code=Exit.USAGE)


class NoSuchJobError(UsageError):
    """No job has the id or the name that the user gave."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a config."""

    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return str(TpuxError(self.message, where=self.where, hint=self.hint))


class ConfigError(UsageError):
    """All mistakes of a config at once."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems

    def messages(self) -> list[str]:
        """Return a message for each mistake."""
        return [str(problem) for problem in self.problems]


class InvalidSectionError(TpuxError):
    """A section of a job's stored config is not valid for the installed tpux and its plugins.

    Args:
        section: its name.
        details: what is not valid.
    """

    def __init__(self, section: str, details: str) -> None:
        super().__init__(f"section {section!r} of this job is not valid for the installed tpux or plugin: {details}")
        self.section = section


class HostUnreachableError(TpuxError):
    """A worker did not answer. Whether the machine still exists is unknown."""


class HostIdentityError(HostUnreachableError):
    """A worker answered, but is not the machine that the allocation describes: its host key is another one."""


_OBJECT = re.compile(r"<[^<>]* object at 0x[0-9a-f]+>:? ?|\w+Pool\([^()]*\): |\[Errno -?\d+\] ")


def plain_reason(error: BaseException) -> str:
    """Return what an error of a library or of the system says, for a message: without classes, numbers and objects.

    Args:
        error: the error; the innermost one that it was made of counts.
    """
    seen = [error]
    while nested := [each for each in _inner(seen[-1]) if each not in seen]:
        seen.append(nested[0])
    innermost = seen[-1]
    if isinstance(innermost, OSError) and innermost.strerror:
        where = f"{innermost.filename}: " if innermost.filename else ""
        reason = innermost.strerror
        if innermost.errno and "Connect call failed (" in reason:  # asyncio's, with the addresses as tuples
            reason = os.strerror(innermost.errno)
        text = f"{where}{reason}"
    else:
        text = next((arg for arg in reversed(innermost.args) if isinstance(arg, str) and arg), "")
    words = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(innermost).__name__).lower()
    return " ".join(_OBJECT.sub("", text).split()) or words


def _inner(error: BaseException) -> list[BaseException]:
    candidates = [getattr(error, "reason", None), *error.args, error.__cause__]
    return [each for each in candidates if isinstance(each, BaseException)]

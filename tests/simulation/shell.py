"""The part of a shell that simulated workers understand: enough for programs of tests, which real shells run too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

SIGTERM, SIGKILL = 143, 137
"""The exit codes of what a signal ended, as a shell reports them."""
_TEST = re.compile(r"\[ (\S+) (!?=) (\S+) \] (&&|\|\|) (.*)")


@dataclass
class Timeline:
    """What a script does, and when: seconds after its start.

    Attributes:
        output: the pieces of its output.
        end: when it exits by itself.
        code: with which code.
        ignores_term: SIGTERM does not end it.
        touched: the files that it creates.
    """

    output: list[tuple[float, bytes]] = field(default_factory=list)
    end: float = 0.0
    code: int = 0
    ignores_term: bool = False
    touched: list[tuple[float, str]] = field(default_factory=list)

    def until(self, seconds: float) -> bytes:
        return b"".join(piece for at, piece in self.output if at <= seconds)


class UnknownCommandError(Exception):
    """A script has a command that simulated workers do not understand: the simulation has to learn it."""


def interpret(script: str, env: Mapping[str, str], files: frozenset[str] = frozenset()) -> Timeline:
    """Return what a script does: `echo`, `sleep`, `exit`, `touch`, `test -e`, `trap '' TERM`, `[ a = b ] || ...`."""
    found = Timeline()
    for line in re.split(r"[;\n]", script):
        if not _execute(line.strip(), env, found, files):
            break
    return found


def _execute(  # noqa: C901  (a case for each command)
    line: str, env: Mapping[str, str], found: Timeline, files: frozenset[str]
) -> bool:
    """Execute one command; return whether the script goes on."""
    line = re.sub(r"\$\{?(\w+)\}?", lambda match: env.get(match[1], ""), line)
    if match := _TEST.fullmatch(line):
        left, operator, right, junction, rest = match.groups()
        holds = (left == right) == (operator == "=")
        return _execute(rest, env, found, files) if holds == (junction == "&&") else True
    words = shlex.split(line, comments=True)
    match words:
        case []:
            pass
        case ["echo", *text]:
            found.output.append((found.end, f"{' '.join(text)}\n".encode()))
        case ["sleep", seconds]:
            found.end += float(seconds)
        case ["exec", *rest]:
            _execute(shlex.join(rest), env, found, files)
            return False
        case ["exit", code]:
            found.code = int(code)
            return False
        case ["touch", name]:
            found.touched.append((found.end, name))
        case ["test", "-e", name]:
            if name not in files | {touched for _, touched in found.touched}:
                found.code = 1
                return False
        case ["trap", "", "TERM"]:
            found.ignores_term = True
        case ["true"]:
            pass
        case _:
            raise UnknownCommandError(line)
    return True

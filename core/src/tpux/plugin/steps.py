"""Steps: what a plugin wants done on a worker, as data, so that it can be tested and shown without one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

Value = str | int | float | PurePath | Sequence[str | int | float | PurePath]

_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")


@dataclass(frozen=True)
class Result:
    """How a script ended.

    Attributes:
        code: its exit code as a shell tells it: 128 + n where signal n ended it, and where it exited
            with that number itself, for a shell cannot tell the two apart.
        output: what it wrote, stdout and stderr as they came.
    """

    code: int = 0
    output: bytes = b""

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.code == 0

    @property
    def text(self) -> str:
        """The output as text without the blanks around it; what is no UTF-8 is replaced."""
        return self.output.decode(errors="replace").strip()


@dataclass(frozen=True)
class Sh:
    """A shell script to run (`sh -e`) in the worker's home directory; made by `sh`."""

    script: str
    may_fail: bool = False
    example: Result = field(default_factory=Result)
    timeout: float = 3600.0


@dataclass(frozen=True)
class Put:
    """A file to copy to a worker; made by `put`."""

    source: Path | bytes
    remote: str
    mode: int = 0o600


Step = Sh | Put
Steps = Generator[Step, Result, None]


def sh(template: str, *, may_fail: bool = False, example: str = "", timeout: float = 3600.0, **values: Value) -> Sh:
    """A script with quoted values.

    `{name}` becomes the value of that name, quoted for the shell (the items of a list one by one);
    all other braces are left to the shell.

    Args:
        template: the script.
        may_fail: whether the steps after it run even when it exits with another code than 0.
        example: the output that a dry run answers with.
        timeout: seconds after which the step counts as failed and is ended.
        values: what the placeholders stand for.

    Raises:
        ValueError: a value that no placeholder names, or a placeholder between quotes, where the
            value's own quoting would end them.
    """
    used: set[str] = set()

    def quoted(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        around = template[max(0, match.start() - 1) : match.start()] + template[match.end() : match.end() + 1]
        if "'" in around or '"' in around:
            raise ValueError(f"{match[0]} stands between quotes in {template!r}: it brings its own")
        used.add(name)
        value = values[name]
        items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        return " ".join(shlex.quote(str(item)) for item in items)

    script = _PLACEHOLDER.sub(quoted, template)
    if unused := values.keys() - used:
        raise ValueError(f"no placeholder in {template!r} takes {', '.join(sorted(unused))}")
    return Sh(script, may_fail, Result(0, example.encode()), timeout)


def put(source: Path | str | bytes, remote: str, *, mode: int = 0o600) -> Put:
    """A file on this machine (a path), or its content (bytes), copied to `remote` on the worker.

    Args:
        source: the path, or the content itself.
        remote: where to; a relative path, or one after `~/`, counts from the worker's home.
        mode: the permissions of the copy.
    """
    return Put(Path(source) if isinstance(source, str) else source, remote, mode)


def dry_run(steps: Generator[Step, Result, object]) -> list[Step]:
    """The steps that a generator yields where each answer is its `example`: nothing is done.

    Args:
        steps: what a plugin's hook gave.
    """
    taken: list[Step] = []
    try:
        step = next(steps)
        while True:
            taken.append(step)
            step = steps.send(step.example if isinstance(step, Sh) else Result())
    except StopIteration:
        return taken

"""Steps: what a plugin wants done on a worker, as data, so that it can be tested and shown without a worker."""

from __future__ import annotations

import re
import shlex
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NoReturn

Value = str | int | float | PurePath | Sequence[str | int | float | PurePath]

_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")


@dataclass(frozen=True)
class Result:
    """The result of a script.

    Attributes:
        code: the exit code as a shell reports it: 128 + n if signal n ended the script (or if it exited with
            that number itself; a shell cannot distinguish the two).
        output: stdout and stderr, interleaved as they were written.
    """

    code: int = 0
    output: bytes = b""

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.code == 0

    @property
    def text(self) -> str:
        """The output as text, stripped; bytes that are not UTF-8 are replaced."""
        return self.output.decode(errors="replace").strip()

    if not TYPE_CHECKING:  # a type checker finds unknown attributes itself

        def __getattr__(self, name: str) -> NoReturn:
            """Name the existing attributes: authors try `stdout` and `returncode`, which subprocess has.

            Raises:
                AttributeError: always, since it is called for attributes that do not exist.
            """
            raise AttributeError(f"a Result has no attribute {name!r}: it has code, ok, output (bytes) and text (str)")


@dataclass(frozen=True)
class Sh:
    """A shell script to run (`sh -e`) in the worker's home directory; created by `sh`.

    Attributes:
        script: the script.
        may_fail: continue with the next step even if the exit code is not 0.
        example: the result that a dry run assumes.
        timeout: seconds after which the step is ended and counts as failed.
        preview: of a solver's step: a script that changes nothing and prints what the step would do, "" if it has none.
    """

    script: str
    may_fail: bool = False
    example: Result = field(default_factory=Result)
    timeout: float = 3600.0
    preview: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Refuse a script that no shell can run.

        Raises:
            ValueError: it has a NUL.
        """
        if "\0" in self.script:
            raise ValueError("a script cannot contain a NUL")

    @property
    def title(self) -> str:
        """The first line of the script, without the sign of a comment."""
        return (self.script.strip().splitlines() or [""])[0].removeprefix("# ")

    def with_preview(self, preview: Sh) -> Sh:
        """Return the step with what `tpux solve --dry-run` runs in its place.

        Args:
            preview: a script that changes nothing and prints what the step would do on this worker, one action a line,
                such as "would remove the file x".
        """
        return replace(self, preview=preview.script)


@dataclass(frozen=True)
class Put:
    """A file to copy to a worker; created by `put`."""

    source: Path | bytes
    remote: str
    mode: int = 0o600


Step = Sh | Put
Steps = Generator[Step, Result, None]


def sh(template: str, *, may_fail: bool = False, example: str = "", timeout: float = 3600.0, **values: Value) -> Sh:
    """Return a step that runs a script with quoted values.

    `{name}` is replaced by the value of that name, quoted for the shell (each item of a list separately);
    all other braces are left to the shell.

    Args:
        template: the script.
        may_fail: continue with the next step even if the exit code is not 0.
        example: the output that a dry run assumes.
        timeout: seconds after which the step is ended and counts as failed.
        values: the values of the placeholders.

    Raises:
        ValueError: no placeholder names a value; a placeholder is inside quotes, which the value's own quotes
            would end; a value begins with `~/`, which the shell does not expand inside quotes; or one has a NUL.
    """
    used: set[str] = set()

    def quoted(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        around = template[max(0, match.start() - 1) : match.start()] + template[match.end() : match.end() + 1]
        if "'" in around or '"' in around:
            raise ValueError(f"{match[0]} is inside quotes in {template!r}: remove them, its value is quoted already")
        used.add(name)
        value = values[name]
        items = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for text in map(str, items):
            if text == "~" or text.startswith("~/"):
                raise ValueError(
                    f"{match[0]} is {text!r}, and the shell does not expand a quoted ~: use a path relative to the home"
                    f" directory, where scripts run ({text[2:] or '.'!r}), or write $HOME/ before the placeholder"
                )
        return " ".join(shlex.quote(str(item)) for item in items)

    script = _PLACEHOLDER.sub(quoted, template)
    if unused := values.keys() - used:
        raise ValueError(f"there is no placeholder for {', '.join(sorted(unused))} in {template!r}")
    return Sh(script, may_fail, Result(0, example.encode()), timeout)


def put(source: Path | str | bytes, remote: str, *, mode: int = 0o600) -> Put:
    """Return a step that copies a file to the worker.

    Args:
        source: a path on this machine, or the content as bytes.
        remote: the destination; a relative path, also after `~/`, is relative to the worker's home directory.
        mode: the permissions of the copy.
    """
    return Put(Path(source) if isinstance(source, str) else source, remote, mode)


def dry_run(steps: Generator[Step, Result, object]) -> list[Step]:
    """Return the steps that a generator yields if each result is the step's `example`; nothing is run.

    Args:
        steps: the answer of a plugin's hook.
    """
    taken: list[Step] = []
    try:
        step = next(steps)
        while True:
            taken.append(step)
            step = steps.send(step.example if isinstance(step, Sh) else Result())
    except StopIteration:
        return taken

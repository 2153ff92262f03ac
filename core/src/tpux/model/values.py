"""Types of the values of a section, which plugins use for their own keys too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from tpux import durations
from tpux.accelerators import canonical, workers_of
from tpux.errors import UsageError
from tpux.model.failures import FailureKind

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that no name may have: they control a terminal, break or reverse a line, or cannot be encoded."""

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TAG = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:/=]{0,99}")
"""The name of an environment variable that a shell accepts."""


def _parse_duration(value: object) -> object:
    if isinstance(value, bool):  # which is an int, too
        value = str(value).lower()
    return durations.parse_duration(value) if isinstance(value, str) else value


class _AlsoText:
    """Adds the text of a duration to the JSON Schema of a number, and keeps its limits."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "type": ["number", "string"], "pattern": durations.PATTERN}


Duration = Annotated[
    float,
    BeforeValidator(_parse_duration),
    Field(ge=0, le=durations.LONGEST),
    _AlsoText(),
]
"""A duration: a number of seconds, or `250ms`, `30s`, `1m30s`, `2h`, `1d`."""


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?i?)B?")
_FACTORS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


def _parse_size(value: object) -> object:
    """Return the number of bytes of a size such as `500MB` or `1.5GiB`.

    Raises:
        ValueError: it is not a size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size: write a number and B, kB, MB or GB, such as 500MB")
    unit = match[2]
    try:
        return int(float(match[1]) * (1024 if unit.endswith("i") else 1000) ** _FACTORS[unit.removesuffix("i")])
    except OverflowError as error:
        raise ValueError(f"{value!r} is not a size: it is too large") from error


Size = Annotated[
    int,
    BeforeValidator(_parse_size),
    Field(gt=0),
    WithJsonSchema({"type": ["integer", "string"], "pattern": rf"^\s*{_SIZE.pattern}\s*$"}),
]
"""A number of bytes, or `500MB`, `1.5GiB`."""


def local_file(value: object, info: ValidationInfo) -> object:
    """Return a path on this machine as absolute; relative ones count from the config's directory, then the current one.

    Core copies the file to the job, so that later changes do not affect the job. `~` is the home directory of the shell
    that gave the job its config, also in a supervisor that has another one.

    Raises:
        ValueError: the file does not exist.
    """
    if not isinstance(value, (str, Path)):
        return value
    context = info.context if isinstance(info.context, dict) else {}
    path = Path(context.get("directory", ".")) / _expand(Path(value), context.get("home"))
    other = _below_current_directory(path, value, context)
    source: Path = context.get("copies", {}).get(path) or _existing(path, other, value, context)
    if context.get("check_files", True) and not source.is_file():
        raise ValueError(f"file not found: {source}" + (f", nor {other}" if other else ""))
    if isinstance(files := context.get("files"), dict):
        files[path] = source
    return source


def _below_current_directory(path: Path, value: str | Path, context: Mapping[str, object]) -> Path | None:
    """Return the second place of a relative path, below the shell's current directory; None if it is the first one."""
    current = context.get("current_directory")
    if not isinstance(current, Path) or str(value).startswith("~"):
        return None
    return current / value if current / value != path else None


def _existing(path: Path, other: Path | None, value: str | Path, context: Mapping[str, object]) -> Path:
    """Return which of the two places has the file, the first one if both have.

    Args:
        path: the place beside the config.
        other: the place below the current directory; None if that is the same.
        value: the path as the config has it.
        context: of the validation; its `ambiguous` gets the two places if both have the file.
    """
    if other is None or not other.is_file():
        return path
    used, unused = (path, other) if path.is_file() else (other, path)
    if isinstance(ambiguous := context.get("ambiguous"), dict):
        ambiguous[str(value)] = (used, unused)
    return used


def _expand(path: Path, home: Path | None) -> Path:
    return home.joinpath(*path.parts[1:]) if home is not None and path.parts[:1] == ("~",) else path


LocalFile = Annotated[Path, BeforeValidator(local_file)]
"""A file on this machine; a relative path counts from the config's directory, then from the current one."""


def _in_home(directory: str) -> str:
    """Return a directory on the workers, or a URL: a relative one is in the home directory, wherever a program starts.

    One that begins with a reference is left as it is: its value is only known when the job is created.
    """
    directory = re.sub(r"^\$HOME(?=/|$)", "~", directory)
    if re.match(r"~[^/]", directory):
        raise ValueError(f"{directory!r}: write the whole path of the other user's home directory")
    return directory if not directory or directory[0] in "/~$" or "://" in directory else f"~/{directory}"


WorkerDirectory = Annotated[str, AfterValidator(_in_home)]
"""A directory on the workers, or a URL; relative paths, and `~`, count from the home directory."""


def known_accelerator(accelerator: str) -> str:
    """Return the accelerator's name in the API.

    Raises:
        ValueError: it does not exist.
    """
    accelerator = canonical(accelerator)
    try:
        workers_of(accelerator)
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error
    return accelerator


Accelerator = Annotated[str, AfterValidator(known_accelerator)]
"""The name of an existing accelerator, for the `tpu` section of an allocator of TPUs."""


def _regular_expression(pattern: str) -> str:
    try:
        compiled = re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    if compiled.search(""):
        raise ValueError("it matches every line")
    return pattern


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_regular_expression)]
"""A regular expression that is searched in the lines of a log (`tpux.fields.find_line`)."""


def _below_output(pattern: str) -> str:
    if pattern.startswith(("/", "~", "$HOME")) or "://" in pattern:
        relative = pattern.rsplit("/", 1)[-1] or "*"
        raise ValueError(
            f"it is appended to the output directory of an attempt, so this matches nothing; write a relative pattern, "
            f"such as {relative}, and set the directory with job.output_dir"
        )
    return pattern


Tag = Annotated[str, Field(pattern=f"^{TAG.pattern}$")]
OutputPattern = Annotated[str, AfterValidator(_below_output)]
"""A glob pattern below the output directory of an attempt."""


def _on_workers(pattern: str) -> str:
    parts = re.sub(r"^\$HOME(?=/|$)", "~", pattern).split("/")
    if "\0" in pattern or not any(part not in {"", "."} for part in parts[parts[0] == "~" :]):
        raise ValueError(f"{pattern!r} is no pattern of files, such as out/*.json")
    if ".." in parts or "**" in pattern:
        raise ValueError(f"{pattern}: no .. and **; write an absolute path, or a directory for all that is in it")
    if "\\" in pattern:
        raise ValueError(f"{pattern}: a backslash escapes nothing here: write [[], [*] or [?] for the character itself")
    if "://" in pattern or (parts[0] != "~" and parts[0].startswith("~")):
        raise ValueError(
            f"{pattern}: only files on the workers are fetched: write a path there; ~/ is the home directory"
        )
    return "/".join(parts)


CollectPattern = Annotated[str, AfterValidator(_on_workers)]
"""A glob pattern of files on the workers."""


def _reported_kind(kind: FailureKind) -> FailureKind:
    if kind == "preempted":
        raise ValueError(
            "only the cloud says that machines are preempted, since new ones are then requested without end; "
            "write host-lost or infra"
        )
    return kind


OutputFailureKind = Annotated[FailureKind, AfterValidator(_reported_kind)]
"""A kind of failure that a line of output can show: all but `preempted`, which has neither a budget nor a delay."""


_PYTHON_VERSION = re.compile(r"(?:python)?(3\.(?:[2-9]|[1-9]\d+))")


def _python_version(value: object) -> object:
    """Normalize `3.10` and `python3.10` to `3.10`.

    Raises:
        ValueError: the value is not a Python version, or is a number: YAML reads an unquoted 3.10 as 3.1.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        problem = f"YAML reads an unquoted 3.10 as the number {value}" if value == 3.1 else f"{value} is a number"
        meant = "3.10" if value in {3, 3.1} else value
        raise ValueError(f'{problem}: write "{meant}" in quotes, or python{meant}')  # noqa: TRY004  (pydantic reports ValueError)
    if not isinstance(value, str):
        return value
    match = _PYTHON_VERSION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'{value!r} is not a Python version: write "3.N" or "python3.N", such as "3.10"')
    return match[1]


PythonVersion = Annotated[
    str,
    BeforeValidator(_python_version),
    WithJsonSchema({"type": "string", "pattern": rf"^\s*{_PYTHON_VERSION.pattern}\s*$"}),
]
"""A version of Python, as `3.N`; `python3.N` means the same."""

"""The section `venv` of a config."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from tpux import LocalFile, Section

_VERSION = re.compile(r"(?:python)?(3\.(?:[2-9]|[1-9]\d+))")


def python_version(value: object) -> object:
    """`3.10` or `python3.10`, as `3.10`.

    Raises:
        ValueError: it is no such version, or a number: YAML reads an unquoted 3.10 as 3.1.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        wrote = f"YAML reads an unquoted 3.10 as the number {value}" if value == 3.1 else f"{value} is a number"
        meant = "3.10" if value in {3, 3.1} else value
        raise ValueError(f'{wrote}: write "{meant}" in quotes, or python{meant}')  # noqa: TRY004  (pydantic hears ValueError)
    if not isinstance(value, str):
        return value
    match = _VERSION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'{value!r} is no version of Python: write "3.N" or "python3.N", such as "3.10"')
    return match[1]


PythonVersion = Annotated[
    str,
    BeforeValidator(python_version),
    WithJsonSchema({"type": "string", "pattern": rf"^\s*{_VERSION.pattern}\s*$"}),
]
# What goes into PIP_FIND_LINKS and UV_FIND_LINKS, which part several with blanks and commas.
SingleValue = Annotated[str, Field(pattern=r"^[^\s,]+$")]


class VenvSection(Section):
    """A Python virtual environment on each worker."""

    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$")] = "venv"
    """What the environment is called: it lives in ~/NAME, unless path says otherwise."""
    requirements_file: LocalFile | None = None
    """A pip requirements file on this machine; when it changes, it is installed again."""
    python: PythonVersion | None = None
    """The version of Python, in quotes: "3.10"; the worker's own python3 where it is not given."""
    path: Annotated[str, Field(min_length=1)] | None = None
    """Where the environment lives on the worker; a relative path counts from the home directory."""
    index_url: SingleValue | None = None
    """The package index to install from, in the place of the worker's own."""
    find_links: SingleValue | None = None
    """A directory on the worker, or the address of a page, where more packages are looked for."""

    @property
    def place(self) -> str:
        """The directory as the config has it: absolute, or to be counted from the worker's home."""
        return self.path or self.name

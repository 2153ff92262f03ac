"""The config section `venv`."""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import AfterValidator, Field, PrivateAttr

from tpux import Job, Section
from tpux.fields import LocalFile, PythonVersion
from tpux_worker_tools import peer_copy, requirements

# PIP_FIND_LINKS and UV_FIND_LINKS split their values at spaces and commas.
SingleValue = Annotated[str, Field(pattern=r"^[^\s,]+$")]


def environment_path(value: str) -> str:
    """Return a directory on the workers: absolute, or relative to their home directory.

    Raises:
        ValueError: no environment can be there.
    """
    if value.startswith("~") and value != "~" and not value.startswith("~/"):
        raise ValueError(f"{value!r} is another user's directory: write its absolute path")
    if value.startswith("-") or not value.strip("/"):
        raise ValueError(f"{value!r} cannot be an environment: write a directory of its own, such as ~/env")
    return value


class VenvSection(Section):
    """A Python virtual environment on each worker."""

    name: Annotated[str, Field(pattern=r"^\w[\w.+-]*$")] = "venv"
    """Name of the environment; its directory is ~/NAME unless path is set."""
    requirements_file: LocalFile | None = None
    """A pip requirements file on this machine; installed again when it changes, or a file that it names."""
    python: PythonVersion | None = None
    """Python version, in quotes: "3.10"; default: the worker's python3."""
    path: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$"), AfterValidator(environment_path)] | None = None
    """Directory of the environment on the worker; a relative path starts at the home directory."""
    index_url: SingleValue | None = None
    """URL of the package index; default: the index configured on the worker."""
    find_links: SingleValue | None = None
    """A directory on the worker or the URL of a page with additional packages."""

    _brought: requirements.Brought = PrivateAttr(requirements.NOTHING)

    def with_code(self, job: Job) -> VenvSection:
        """Return this section with what the job's code brings for it."""
        section = self.model_copy()
        section._brought = requirements.brought_by_code(job, "venv", "requirements", self.requirements_file)  # noqa: SLF001
        return section

    @property
    def brought(self) -> requirements.Brought:
        """What the code brings."""
        return self._brought

    @property
    def directory(self) -> str:
        """Directory of the environment: absolute, or relative to the worker's home."""
        return self.path or self.name

    def uses_peers(self) -> bool:
        """Return True if there are packages, which one worker installs and the others copy."""
        return self.requirements_file is not None

    def digest(self) -> str:
        """Return a digest of what the environment is built from: another index has other builds of a version."""
        facts = f"{self.python}\0{self.index_digest()}\0{self.brought.digest}".encode()
        return hashlib.sha256(facts + self._requirements()).hexdigest()[:16]

    def index_digest(self) -> str:
        """Return a digest of where the packages come from, those in the code included."""
        places = filter(None, [self.brought.packages])
        return peer_copy.index_digest(self._requirements(), self.index_url, self.find_links, *places)

    def _requirements(self) -> bytes:
        if self.requirements_file is None or self.brought.file:
            return self.brought.text
        return self.requirements_file.read_bytes()

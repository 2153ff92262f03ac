"""The config section `conda`."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field, PrivateAttr, WithJsonSchema, model_validator

from tpux import Job, Section
from tpux.fields import LocalFile, PythonVersion
from tpux_worker_tools import peer_copy
from tpux_worker_tools.requirements import NOTHING, Brought, brought_by_code

_NAME = re.compile(r"\w[\w.+-]*")


def _name(value: object) -> object:
    if isinstance(value, str) and not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of an environment: use letters, digits and . _ + -")
    if isinstance(value, str) and value in {"base", "root"}:
        raise ValueError(f"{value} is conda's own environment: choose another name")
    return value


Name = Annotated[str, BeforeValidator(_name), Field(pattern=f"^{_NAME.pattern}$")]
# curl takes an argument that begins with a dash for an option.
Url = Annotated[str, Field(pattern=r"^(?:https?|file)://\S+$")]
Digest = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]
Requirement = Annotated[str, Field(pattern=r"^[^\x00\r\n]+$")]

_ONE_OR_MANY = {"type": ["array", "string"], "items": {"type": "string"}}


class CondaSection(Section):
    """A conda environment on each worker."""

    name: Name = Field("tpux", validation_alias=AliasChoices("name", "env_name"))
    """Name of the environment, whatever name the file gives it."""
    config_file: LocalFile | None = Field(None, validation_alias=AliasChoices("config_file", "yaml_file"))
    """An environment.yml on this machine; the environment is updated when it changes, or a file that it names."""
    prune: bool = False
    """Whether an update removes the packages that config_file does not list any more."""
    python: PythonVersion | None = None
    """Python version, in quotes: "3.10". With a config_file it is only checked."""
    requirements: Annotated[list[Requirement], WithJsonSchema(_ONE_OR_MANY)] = Field(default_factory=list)
    """Requirements that pip installs into the environment; a text is a file of them, as requirements_file."""
    requirements_file: LocalFile | None = None
    """A pip requirements file on this machine; installed again when it changes, or a file that it names."""
    installer_url: Url | None = None
    """Where to get the installer of conda if a worker has none; default: the newest Miniforge."""
    installer_sha256: Digest | None = None
    """The SHA-256 digest of that installer."""

    _brought: tuple[Brought, Brought] = PrivateAttr((NOTHING, NOTHING))

    def with_code(self, job: Job) -> CondaSection:
        """Return this section with what the job's code brings for its two files."""
        section = self.model_copy()
        section._brought = (  # noqa: SLF001
            brought_by_code(job, "conda", "config_file", self.config_file, is_list=True),
            brought_by_code(job, "conda", "requirements_file", self.requirements_file, self.requirements),
        )
        return section

    @property
    def brought(self) -> tuple[Brought, Brought]:
        """What the code brings for the environment.yml, and for the requirements."""
        return self._brought

    def uses_peers(self) -> bool:
        """Return True: one worker creates the environment, and the others copy it."""
        return True

    def exposed_keys(self) -> dict[str, str]:
        """Return the key that becomes an argument of curl."""
        return {"installer_url": "use a URL without a password, or file:// and the module script to fetch it"}

    def all_requirements(self) -> bytes:
        """Return the requirements as a file that pip reads, without a file in the code; b"" if there are none."""
        is_copied = self.requirements_file is not None and not self.brought[1].file
        given = self.requirements_file.read_bytes() if self.requirements_file is not None and is_copied else b""
        return b"\n".join([given, *(line.encode() for line in self.requirements), b""]).lstrip(b"\n")

    def digest(self) -> str:
        """Return a digest of what the environment is made from."""
        facts = (f"{self.python}\0{self.prune}".encode(), self._config(), self.all_requirements())
        brought = [each.text + each.digest.encode() for each in self.brought if each.directory]
        return hashlib.sha256(b"\0".join([*facts, *brought])).hexdigest()[:16]

    def index_digest(self) -> str:
        """Return a digest of where pip gets the packages, those in the code included."""
        texts = [self._config(), self.all_requirements(), *(each.text for each in self.brought if each.text)]
        return peer_copy.index_digest(b"\n".join(texts), *(each.packages for each in self.brought if each.packages))

    def _config(self) -> bytes:
        return b"" if self.config_file is None or self.brought[0].file else self.config_file.read_bytes()

    @model_validator(mode="before")
    @classmethod
    def _file_of_requirements(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(data.get("requirements"), str):
            return data
        if data.get("requirements_file") is not None:
            raise ValueError("requirements and requirements_file are two files: set only one of them")
        rest = {key: value for key, value in data.items() if key != "requirements"}
        return {**rest, "requirements_file": data["requirements"]}

    @model_validator(mode="after")
    def _complete(self) -> CondaSection:
        if (self.installer_url is None) != (self.installer_sha256 is None):
            raise ValueError("installer_url and installer_sha256 belong together: set both")
        if self.prune and self.config_file is None:
            raise ValueError("prune needs config_file")
        return self

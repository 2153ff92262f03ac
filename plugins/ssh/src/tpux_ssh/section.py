"""The section `ssh` of a config: how tpux logs in, and what the set-up module puts on the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from tpux import Job, LocalFile, Seconds, Section
from tpux_ssh.keyfiles import KeyFileError, inspect_key


def _private(path: Path, info: ValidationInfo) -> Path:
    """A file that others cannot read and that holds a private key."""
    if (info.context or {}).get("check_files", True):
        try:
            inspect_key(path)
        except KeyFileError as error:
            raise ValueError(str(error)) from error
    return path


def _usable(path: Path, info: ValidationInfo) -> Path:
    """A private key that can be used while nobody is there to type."""
    if (info.context or {}).get("check_files", True) and inspect_key(path).encrypted:
        raise ValueError(
            f"{path} has a passphrase, and nobody is there to type it when a job goes on at night:"
            " name a key without one, or none (machines that tpux makes take tpux's own key)"
        )
    return path


PrivateKey = Annotated[LocalFile, AfterValidator(_private)]


class Identity(Section):
    """A key pair that the workers get."""

    private_key: PrivateKey
    """The private key on this machine; it becomes ~/.ssh/<its name> on the workers, mode 600."""
    public_key: LocalFile | None = None
    """The public key on this machine, mode 644 on the workers."""
    config_entry: str = ""
    """Lines for the workers' ~/.ssh/config, such as a Host with this IdentityFile."""


class SshSection(Section):
    """How tpux logs in to the workers, and which keys they get."""

    private_key: Annotated[PrivateKey, AfterValidator(_usable)] | None = None
    """Your key for logging in to the workers; tpux tries its own one first."""
    identities: list[Identity] = Field(default_factory=list)
    """Key pairs that are copied to each worker's ~/.ssh."""
    tpu_private_key: PrivateKey | None = None
    """A private key that is copied to the workers, as the first jobman's configs have it."""
    tpu_public_key: LocalFile | None = None
    """The public key beside it."""
    between_workers: bool = False
    """Let the workers log in to each other, with a key that is made for this job alone."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The port of the workers' ssh servers, where the allocator does not say; 22."""
    connect_timeout: Annotated[Seconds, Field(gt=0)] = 15.0
    """How long a worker may take to answer, at each stage of logging in."""

    @property
    def login_key(self) -> Path | None:
        """The key that the config names for logging in."""
        return self.private_key or self.tpu_private_key

    def pairs(self) -> list[Identity]:
        """All that is copied to the workers."""
        if self.tpu_private_key is None:
            return self.identities
        first = Identity.model_construct(private_key=self.tpu_private_key, public_key=self.tpu_public_key)
        return [first, *self.identities]


def section_of(job: Job) -> SshSection:
    """The job's section `ssh`, or one with the defaults."""
    return job.section("ssh", SshSection) or SshSection()

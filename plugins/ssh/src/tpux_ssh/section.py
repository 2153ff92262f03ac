"""The config section `ssh`: how tpux logs in, and which keys the module installs on the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from tpux import Job, Section
from tpux.fields import Duration, LocalFile
from tpux_ssh.address import parse_address
from tpux_ssh.keyfiles import KeyFileError, inspect_key, is_private_key, public_path


def _private(path: Path, info: ValidationInfo) -> Path:
    """Require a private key file that only the owner can read.

    Raises:
        ValueError: it is none, or others can read it.
    """
    if (info.context or {}).get("check_files", True):
        try:
            inspect_key(path)
        except KeyFileError as error:
            raise ValueError(str(error)) from error
    return path


def _usable(path: Path, info: ValidationInfo) -> Path:
    """Require a private key without a passphrase.

    Raises:
        ValueError: it has one.
    """
    if (info.context or {}).get("check_files", True) and inspect_key(path).encrypted:
        raise ValueError(
            f"{path} has a passphrase, which cannot be entered when a job resumes unattended:"
            " use a key without one, or omit this setting (machines that tpux creates accept tpux's own key)"
        )
    return path


def _jump_host(address: str) -> str:
    """Require `[user@]host[:port]`."""
    parse_address(address)
    return address


def _public(path: Path, info: ValidationInfo) -> Path:
    """Require that a file to be readable by all is no private key.

    Raises:
        ValueError: it is one.
    """
    if (info.context or {}).get("check_files", True) and path.is_file() and is_private_key(path.read_bytes()):
        raise ValueError(f"{path} is a private key: use {public_path(path)}")
    return path


PrivateKey = Annotated[LocalFile, AfterValidator(_private)]
PublicKey = Annotated[LocalFile, AfterValidator(_public)]


class Identity(Section):
    """A key pair to copy to the workers."""

    private_key: PrivateKey
    """Private key file on this machine; copied to ~/.ssh/NAME on the workers with mode 600."""
    public_key: PublicKey | None = None
    """Public key file on this machine; copied to ~/.ssh/NAME on the workers with mode 644."""
    config_entry: str = ""
    """Lines to add to the workers' ~/.ssh/config, such as a Host block with this IdentityFile."""


class SshSection(Section):
    """SSH logins to the workers, and keys to install on them."""

    private_key: Annotated[PrivateKey, AfterValidator(_usable)] | None = None
    """Private key for logging in to the workers, without a passphrase; tried after tpux's own key."""
    identities: list[Identity] = Field(default_factory=list)
    """Key pairs to copy to ~/.ssh on each worker."""
    public_key: str | None = None
    """The public key of private_key, as in jobman's configs; not used, since the private key contains it."""
    tpu_private_key: PrivateKey | None = None
    """Private key to copy to the workers (jobman's key), also used to log in if private_key is not set."""
    tpu_public_key: PublicKey | None = None
    """Public key that belongs to tpu_private_key."""
    between_workers: bool | None = None
    """Let the workers log in to each other, with a key pair generated for this job. By default, if the set-up copies
    code or an environment from worker to worker, and the machines are not your own."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Port of the workers' SSH servers if the allocator does not provide one; default 22."""
    connect_timeout: Annotated[Duration, Field(gt=0)] = 15.0
    """Timeout of each step of a login: connect, banner, authentication."""

    jump: Annotated[str, AfterValidator(_jump_host)] | None = None
    """A host through which all workers are reached, user@host or user@host:port, as with `ssh -J`."""
    iap: bool = False
    """Reach the workers through Google's Identity-Aware Proxy, with `gcloud compute start-iap-tunnel`."""

    @model_validator(mode="after")
    def _one_way(self) -> SshSection:
        if self.jump and self.iap:
            raise ValueError("ssh.jump and ssh.iap are two ways to the same workers: remove one of them")
        return self

    def warnings(self) -> dict[str, str]:
        """Return which keys have no effect."""
        if self.public_key is None:
            return {}
        return {"public_key": "the private key contains it; list both in identities to copy them to the workers"}

    @property
    def login_key(self) -> Path | None:
        """The configured key for logging in, if any."""
        return self.private_key or self.tpu_private_key

    def pairs(self) -> list[Identity]:
        """Return all key pairs to copy to the workers."""
        if self.tpu_private_key is None:
            return self.identities
        first = Identity.model_construct(private_key=self.tpu_private_key, public_key=self.tpu_public_key)
        return [first, *self.identities]


def section_of(job: Job) -> SshSection:
    """Return the job's section `ssh`, or the defaults if the config has none."""
    return job.section("ssh", SshSection) or SshSection()

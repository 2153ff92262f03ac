"""Which key files a job logs in with, in which order."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tpux import Job
from tpux_ssh.keyfiles import KeyFileError, look_at, own_key
from tpux_ssh.section import SshSection

_DEFAULTS = ("id_ed25519", "id_ecdsa", "id_rsa", "google_compute_engine")


def key_files(job: Job) -> list[Path]:
    """The key of tpux, then the one that the config names; where it names none, those that ssh would take.

    Raises:
        OSError: tpux's own key cannot be made.
    """
    section = job.section("ssh", SshSection) or SshSection()
    named = section.private_key or section.tpu_private_key
    return [own_key(), *([named] if named else default_keys())]


@cache
def default_keys() -> tuple[Path, ...]:
    """The user's own keys that need no passphrase, by the names that OpenSSH and gcloud give them."""
    usable = []
    for path in (Path.home() / ".ssh" / name for name in _DEFAULTS):
        try:
            if not look_at(path).encrypted:
                usable.append(path)
        except KeyFileError:
            continue  # not there, or not usable: nobody asked for it
    return tuple(usable)

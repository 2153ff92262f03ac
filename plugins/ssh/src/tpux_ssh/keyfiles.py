"""Key files on this machine: tpux's own key pair, and what can be said of a user's key without using it."""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpux import TpuxError, home

_OPENSSH = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"
_DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa", "google_compute_engine")


class KeyFileError(TpuxError):
    """A key file that cannot be used."""


@dataclass(frozen=True)
class KeyFile:
    """What a private key's file says without its passphrase."""

    encrypted: bool


def inspect_key(path: Path) -> KeyFile:
    """Look at a private key's file.

    Raises:
        KeyFileError: it cannot be read, others can read it, or it is no private key.
    """
    try:
        mode, content = path.stat().st_mode & 0o777, path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"the key {path} cannot be read: {error.strerror}") from error
    if mode & 0o077:  # what OpenSSH refuses too: "UNPROTECTED PRIVATE KEY FILE"
        raise KeyFileError(f"others can read the private key {path} (mode {mode:o}): chmod 600 {path}")
    if b"PRIVATE KEY-----" not in content:
        meant = ": this is a public key, name the file without .pub" if content.startswith((b"ssh-", b"ecdsa-")) else ""
        raise KeyFileError(f"{path} is no private key{meant}")
    return KeyFile(_is_encrypted(content))


def _is_encrypted(content: bytes) -> bool:
    """Whether it has a passphrase: PROTOCOL.key of OpenSSH names the cipher first; PEM says so in a line."""
    if not content.lstrip().startswith(_OPENSSH):
        return b"ENCRYPTED" in content
    try:
        blob = base64.b64decode(content.partition(_OPENSSH)[2].partition(b"-----")[0])
    except binascii.Error:
        return False  # paramiko says what is wrong with it
    return blob.startswith(_MAGIC) and not blob[len(_MAGIC) :].startswith(b"\0\0\0\4none")


def own_key() -> Path:
    """The ed25519 key of tpux, made once in `$TPUX_HOME/ssh`; its public half is beside it.

    ed25519, for a login with an RSA key costs ten times as much CPU.

    Raises:
        OSError: it cannot be made.
    """
    return make_key(home() / "ssh" / "id_ed25519", "tpux")


def login_keys(configured: Path | None) -> list[Path]:
    """The key of tpux, then the one that the config names; where it names none, those that ssh would take.

    Raises:
        OSError: tpux's own key cannot be made.
    """
    return [own_key(), *([configured] if configured else default_keys())]


@cache
def default_keys() -> tuple[Path, ...]:
    """The user's own keys that need no passphrase, by the names that OpenSSH and gcloud give them."""
    usable = []
    for path in (Path.home() / ".ssh" / name for name in _DEFAULT_NAMES):
        try:
            if not inspect_key(path).encrypted:
                usable.append(path)
        except KeyFileError:
            continue  # not there, or not usable: nobody asked for it
    return tuple(usable)


def make_key(path: Path, comment: str) -> Path:
    """The ed25519 key at `path`, made where it is not there; whoever comes first makes it.

    Raises:
        OSError: it cannot be made.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        private = _generate_ed25519()
        _write_if_absent(path, private, 0o600)
    public = public_path(path)
    if not public.exists():
        _write_if_absent(public, f"{derive_public(path)} {comment}\n".encode(), 0o644)
    return path


def public_path(private: Path) -> Path:
    """Where the public half of a key is kept by custom."""
    return private.with_name(f"{private.name}.pub")


def public_line(private: Path) -> str:
    """The public half as `type base64`, from the file beside the key or from the key itself.

    Raises:
        KeyFileError: neither can be read.
    """
    try:
        words = public_path(private).read_text().split()
    except OSError:
        return derive_public(private)
    return " ".join(words[:2])


def derive_public(private: Path) -> str:
    """The public half of a private key's file, as `type base64`.

    Raises:
        KeyFileError: it cannot be read, or has a passphrase.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form

    content = private.read_bytes()
    load = form.load_ssh_private_key if _OPENSSH in content else form.load_pem_private_key
    try:
        key = load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"the key {private} cannot be used: {error}") from error
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return public.decode()


def _generate_ed25519() -> bytes:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())


def _write_if_absent(path: Path, content: bytes, mode: int) -> None:
    """Write a file whole, unless another process was faster: two keys under one name would fit no worker."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        try:
            os.link(name, path)
        except FileExistsError:
            return
    finally:
        Path(name).unlink()

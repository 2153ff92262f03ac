"""SSH key files on this machine: create tpux's own key pair, inspect the user's keys, and choose the login keys."""

from __future__ import annotations

import base64
import binascii
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpux import TpuxError, plain_reason
from tpux.api import home

_OPENSSH = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"
_DEFAULT_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa", "google_compute_engine")


class KeyFileError(TpuxError):
    """A key file cannot be used."""


@dataclass(frozen=True)
class KeyFile:
    """What can be read from a private key file without its passphrase."""

    encrypted: bool


def inspect_key(path: Path) -> KeyFile:
    """Validate a private key file.

    Raises:
        KeyFileError: the file is unreadable, is readable by others, or is not a private key.
    """
    try:
        mode, content = path.stat().st_mode & 0o777, path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"cannot read the key {path}: {error.strerror}") from error
    if kind := _kind_of_another(path, content):  # before the mode: a public key may be readable by others
        raise KeyFileError(f"{path} is {kind}")
    if mode & 0o077:  # OpenSSH rejects these too: "UNPROTECTED PRIVATE KEY FILE"
        raise KeyFileError(f"the private key {path} is readable by others (mode {mode:o}): run chmod 600 {path}")
    return KeyFile(_is_encrypted(content))


def is_private_key(content: bytes) -> bool:
    """Return True if a file contains a private key in a format of OpenSSH."""
    return re.match(rb"\s*-----BEGIN [A-Z ]*PRIVATE KEY-----", content) is not None


def _kind_of_another(path: Path, content: bytes) -> str:
    """Return what a file is that contains no private key, and what to use; "" if it contains one.

    Sources: sshd(8) for lines of public keys, RFC 4716 for `SSH2 PUBLIC KEY`, PuTTY's documentation, appendix C.
    """
    if is_private_key(content):
        return ""
    if content.startswith(b"PuTTY-User-Key-File-"):
        made = path.with_suffix("") if path.suffix == ".ppk" else path.with_name(f"{path.name}.openssh")
        return f"a key of PuTTY: convert it with puttygen {path} -O private-openssh -o {made}, and use {made}"
    private = path.with_suffix("") if path.suffix == ".pub" else None
    use = f"use {private}" if private is not None and private.exists() else "use the file of the private key"
    lines = [line for line in content.splitlines() if line.strip() and not line.startswith(b"#")]
    kind = lines[0].split()[0] if lines else b""
    if b"-cert-v" in kind:
        return f"a certificate of a public key: {use}"
    if kind.startswith((b"ssh-", b"ecdsa-", b"sk-")) or re.match(rb"-----? ?BEGIN [A-Z0-9 ]*PUBLIC KEY", content):
        return f"a public key: {use}"
    if content.startswith(b"-----BEGIN CERTIFICATE"):
        return f"a certificate: {use}"
    if content.lstrip().startswith(b"{"):
        return "a JSON file, such as a key of a service account: use the file of an SSH private key"
    return "not a private key" if content.strip() else "not a private key: it is empty"


def _is_encrypted(content: bytes) -> bool:
    """Return True if the key has a passphrase.

    Sources: OpenSSH's PROTOCOL.key (the cipher's name comes first); PEM has a header with ENCRYPTED.
    """
    if not content.lstrip().startswith(_OPENSSH):
        return b"ENCRYPTED" in content
    try:
        blob = base64.b64decode(content.partition(_OPENSSH)[2].partition(b"-----")[0])
    except binascii.Error:
        return False  # loading the key reports the error
    return blob.startswith(_MAGIC) and not blob[len(_MAGIC) :].startswith(b"\0\0\0\4none")


def own_key() -> Path:
    """Return the path of tpux's own ed25519 key in `$TPUX_HOME/ssh`, creating the key pair if needed.

    A login with an RSA key would cost ten times as much CPU.

    Raises:
        OSError: the key cannot be created.
    """
    return make_key(home() / "ssh" / "id_ed25519", "tpux")


def login_keys(configured: Path | None, directory: Path) -> list[Path]:
    """Return the private keys to log in with, in order: tpux's own key, then the configured one or the user's defaults.

    Args:
        configured: the key that the config names.
        directory: of the user's own keys.

    Raises:
        OSError: tpux's own key cannot be created.
    """
    return [own_key(), *([configured] if configured else default_keys(directory))]


@cache
def default_keys(directory: Path) -> tuple[Path, ...]:
    """Return the user's keys without a passphrase under the default names of OpenSSH and gcloud."""
    usable = []
    for path in (directory / name for name in _DEFAULT_NAMES):
        try:
            if not inspect_key(path).encrypted:
                usable.append(path)
        except KeyFileError:
            continue  # missing or unusable, which is no error: the config does not name it
    return tuple(usable)


def make_key(path: Path, comment: str) -> Path:
    """Create an ed25519 key pair at `path` unless it exists; safe to call from several processes.

    Returns:
        `path`; the public key is in the same directory.

    Raises:
        OSError: the key cannot be created.
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
    """Return the conventional path of the public key (`NAME.pub`)."""
    return private.with_name(f"{private.name}.pub")


def public_line(private: Path) -> str:
    """Return the public key as `type base64`, from the .pub file or, without one, from the private key.

    Raises:
        KeyFileError: neither file can be used.
    """
    try:
        words = public_path(private).read_text().split()
    except OSError:
        return derive_public(private)
    return " ".join(words[:2])


def derive_public(private: Path) -> str:
    """Derive the public key from a private key file, as `type base64`.

    Raises:
        KeyFileError: the file is invalid, or the key has a passphrase.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form

    content = private.read_bytes()
    load = form.load_ssh_private_key if _OPENSSH in content else form.load_pem_private_key
    try:
        key = load(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"cannot use the key {private}: {plain_reason(error)}") from error
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return public.decode()


def _generate_ed25519() -> bytes:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())


def _write_if_absent(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically, unless it exists: all processes must use the same key."""
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

"""A CA of the emulator's own, and a server certificate for loopback, made by the `openssl` command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tpux import TpuxError

_NEW = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]


@dataclass(frozen=True)
class Certificates:
    """The files of the certificates.

    Args:
        authority: the CA's certificate.
        certificate: the server's.
        key: the server's private key.
    """

    authority: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make a CA and a server certificate for 127.0.0.1 and localhost, unless they are there.

    Raises:
        TpuxError: there is no `openssl`, or it failed.
    """
    files = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    if files.certificate.exists():
        return files
    ca_key = directory / "ca.key"
    authority = ["-subj", "/CN=tpux-emulator-ca", "-keyout", str(ca_key), "-out", str(files.authority)]
    _openssl(*_NEW, *authority, "-addext", "keyUsage=critical,keyCertSign")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    server = ["-subj", "/CN=tpux-emulator", "-keyout", str(files.key), "-out", str(files.certificate), "-addext", names]
    _openssl(*_NEW, "-CA", str(files.authority), "-CAkey", str(ca_key), *server, "-addext", "basicConstraints=CA:FALSE")
    return files


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise TpuxError("TLS needs the `openssl` command", hint="install it, or start without `--tls`") from error
    if done.returncode:
        raise TpuxError(f"openssl cannot make a certificate: {done.stderr.strip()[-300:]}")

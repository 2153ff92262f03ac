"""Finds and configures the workers' OpenSSH server."""

from __future__ import annotations

import shutil
from pathlib import Path

from tpux import TpuxError

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_sshd() -> str:
    """Return the path of sshd.

    Raises:
        TpuxError: it is not installed.
    """
    found = shutil.which("sshd", path=f"{_PATH}:/usr/lib/openssh")
    if found is None:
        raise TpuxError(
            "no OpenSSH server is installed on this machine; the emulator's workers need it",
            hint="install it with `apt-get install openssh-server` (Debian, Ubuntu) or `dnf install openssh-server`"
            " (Fedora), or start without workers: `tpux emulator start --no-workers`",
        )
    return found


def config(
    addresses: list[str], port: int, environment: dict[str, str], directory: Path, *, forced: Path | None = None
) -> str:
    """Return the contents of an sshd_config.

    Args:
        addresses: the addresses to listen on.
        port: the port to listen on.
        environment: environment variables of every session.
        directory: the directory of the host key.
        forced: a script that runs every session (ForceCommand). With it, the authorized keys and the PID file are in
            `directory` too.
    """
    lines = [
        *(f"ListenAddress {address}:{port}" for address in addresses),
        f"HostKey {directory}/ssh_host_ed25519_key",
        "UsePAM no",
        "UseDNS no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin " + ("no" if forced is None else "prohibit-password"),
        "PrintMotd no",
        "X11Forwarding no",
        "MaxStartups 2000",
        "MaxSessions 200",
        "AcceptEnv LANG LC_*",
        "SetEnv " + " ".join(f'"{key}={value}"' for key, value in environment.items()),
    ]
    if forced is None:
        # As on Google's images, which are Ubuntu's: sftp inside sshd.
        lines += ["Subsystem sftp internal-sftp"]
    else:
        server = next(
            (p for p in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server") if Path(p).exists()),
            "sftp-server",
        )
        lines += [
            f"Subsystem sftp {server}",
            f"ForceCommand /bin/sh {forced}",
            f"AuthorizedKeysFile {directory}/authorized_keys",
            f"PidFile {directory}/sshd.pid",
            "StrictModes no",
        ]
    return "\n".join(lines) + "\n"


def root_environment(metadata: str) -> dict[str, str]:
    """Return the session environment of a worker with its own root: Ubuntu's PATH and the metadata server's address."""
    # google-auth tries the well-known IP address of the metadata server before its name.
    return {"PATH": _PATH, "GCE_METADATA_IP": metadata}

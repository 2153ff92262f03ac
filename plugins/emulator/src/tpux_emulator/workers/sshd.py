"""The workers' OpenSSH server: where it is, and how it is configured."""

from __future__ import annotations

import shutil
from pathlib import Path

from tpux import TpuxError

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_sshd() -> str:
    """The path of sshd.

    Raises:
        TpuxError: there is none on this machine.
    """
    found = shutil.which("sshd", path=f"{_PATH}:/usr/lib/openssh")
    if found is None:
        raise TpuxError(
            "there is no OpenSSH server on this machine, and the emulator's workers are OpenSSH servers",
            hint="`apt-get install openssh-server` (Debian, Ubuntu) or `dnf install openssh-server` (Fedora) gets"
            " it; `tpux emulator start --no-workers` does without workers",
        )
    return found


def config(
    addresses: list[str], port: int, environment: dict[str, str], directory: Path, *, forced: Path | None = None
) -> str:
    """The text of an sshd_config.

    Args:
        addresses: where it listens.
        port: likewise.
        environment: what each session finds in its environment.
        directory: where its host key lies.
        forced: a script that every session runs through; with it goes the user's own key file beside it.
    """
    lines = [
        *(f"ListenAddress {address}:{port}" for address in addresses),
        f"HostKey {directory}/ssh_host_ed25519_key",
        "UsePAM no",
        "UseDNS no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "PrintMotd no",
        "X11Forwarding no",
        "MaxStartups 2000",
        "MaxSessions 200",
        "AcceptEnv LANG LC_*",
        "SetEnv " + " ".join(f'"{key}={value}"' for key, value in environment.items()),
    ]
    if forced is None:
        # Google's images are Ubuntu's: PATH from /etc/environment, sftp inside sshd.
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
    """What a session on a worker with its own root finds: Ubuntu's PATH, and where metadata is."""
    # google-auth looks for the metadata server by its well-known address before it looks by name.
    return {"PATH": _PATH, "GCE_METADATA_IP": metadata}

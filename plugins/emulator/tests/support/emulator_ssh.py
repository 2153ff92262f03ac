"""Logs in to workers with OpenSSH, as anybody would."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from emulator_http import ask
from emulator_support import PARENT

from tpux_emulator.emulator import Emulator


def address(cloud: Emulator, name: str, worker: int = 0) -> str:
    """The external address of a worker."""
    shown = ask(cloud, "GET", f"{PARENT}/nodes/{name}").json()
    return str(shown["networkEndpoints"][worker]["accessConfig"]["externalIp"])


def host_keys(cloud: Emulator, name: str) -> list[str]:
    """The ed25519 host keys that the API publishes, one a worker."""
    body = {"queryPath": "hostkeys/"}
    found: list[dict[str, Any]] = ask(cloud, "POST", f"{PARENT}/nodes/{name}:getGuestAttributes", json=body).json()[
        "guestAttributes"
    ]
    return [item["value"] for each in found for item in each["queryValue"]["items"] if item["key"] == "ssh-ed25519"]


def ssh(
    cloud: Emulator, key: Path, where: str, command: str, *, host_key: str = "", timeout: int = 30, program: str = "ssh"
) -> subprocess.CompletedProcess[str]:
    """Run a command as USER@ADDRESS; the host key must be the one given, if one is."""
    known = key.with_name("known_hosts")
    port = "" if cloud.ssh_port == 22 else f":{cloud.ssh_port}"
    host = where.rpartition("@")[2]
    known.write_text(f"{f'[{host}]{port}' if port else host} ssh-ed25519 {host_key}\n" if host_key else "")
    options = ["-F", "none", "-i", str(key), "-p", str(cloud.ssh_port), "-o", "BatchMode=yes"]
    options += [
        "-o",
        f"StrictHostKeyChecking={'yes' if host_key else 'accept-new'}",
        "-o",
        f"UserKnownHostsFile={known}",
    ]
    options += ["-o", f"ConnectTimeout={timeout}", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6"]
    return subprocess.run([program, *options, where, command], capture_output=True, text=True, timeout=90)


def keys_for(key: Path, *users: str) -> dict[str, str]:
    """The metadata that lets users in."""
    public = key.with_suffix(".pub").read_text().strip()
    return {"ssh-keys": "\n".join(f"{user}:{public}" for user in users)}

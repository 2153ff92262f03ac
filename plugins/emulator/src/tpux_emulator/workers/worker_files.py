"""The files that the emulator writes to workers' disks."""

from __future__ import annotations

import os
import shutil
from importlib import resources
from pathlib import Path

from tpux_emulator.cloud.records import NodeRecord


def script(name: str) -> str:
    """Return a script of this package."""
    return (resources.files("tpux_emulator") / "workers" / "scripts" / name).read_text(encoding="utf-8")


def ssh_keys(node: NodeRecord) -> str:
    """Return who may log in to a node's workers, a `USER:KEY` per line: its `ssh-keys` metadata, or OS Login's keys."""
    if node.os_login_keys is not None:
        return "\n".join(node.os_login_keys) + "\n"
    return (node.spec.metadata or {}).get("ssh-keys", "").rstrip("\n") + "\n"


def startup_script(node: NodeRecord) -> str:
    """Return the startup script of a node, with an interpreter line; empty if the node has none."""
    text = (node.spec.metadata or {}).get("startup-script", "")
    return text if not text or text.startswith("#!") else f"#!/bin/bash\n{text}\n"


def hosts(node: NodeRecord, metadata: str) -> str:
    """Return a worker's /etc/hosts: the workers of the slice by name, as in the network's DNS, and the metadata server.

    Args:
        node: the slice.
        metadata: the address of the worker's metadata server.
    """
    lines = ["127.0.0.1 localhost", f"{metadata} metadata.google.internal metadata"]
    lines += [f"{worker.internal} {worker.hostname}" for worker in node.workers]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file, creating its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically."""
    draft = path.with_name(f"{path.name}.draft")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def opaque(directory: Path, mode: int) -> None:
    """Create a directory in an overlay's upper layer that hides the contents of the lower one."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(mode)
    os.setxattr(directory, "trusted.overlay.opaque", b"y")


def wipe(path: Path) -> None:
    """Delete a directory with its contents, if it exists."""
    shutil.rmtree(path, ignore_errors=True)

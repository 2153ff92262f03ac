"""The files that the emulator puts on a worker."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

from tpux_emulator.cloud.records import NodeRecord


def script(name: str) -> str:
    """A script that comes with the package."""
    return (resources.files("tpux_emulator") / "workers" / "scripts" / name).read_text(encoding="utf-8")


def ssh_keys(node: NodeRecord) -> str:
    """The `ssh-keys` metadata of a node, ending with a line's end."""
    return (node.spec.metadata or {}).get("ssh-keys", "").rstrip("\n") + "\n"


def startup_script(node: NodeRecord) -> str:
    """The startup script of a node, with an interpreter; empty if it has none."""
    text = (node.spec.metadata or {}).get("startup-script", "")
    return text if not text or text.startswith("#!") else f"#!/bin/bash\n{text}\n"


def hosts(node: NodeRecord, metadata: str) -> str:
    """A worker's /etc/hosts: its siblings by name, as the network's own DNS has them, and the metadata server."""
    lines = ["127.0.0.1 localhost", f"{metadata} metadata.google.internal metadata"]
    lines += [f"{worker.internal} {worker.hostname}" for worker in node.workers]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file and its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def wipe(path: Path) -> None:
    """Remove a directory and all in it; one that is gone already is fine."""
    shutil.rmtree(path, ignore_errors=True)

"""Unmount what a worker's programs have mounted in its home directory."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

TIMEOUT = 10.0
_MOUNTS = Path("/proc/self/mountinfo")
_COMMANDS = (("fusermount3", "-u", "-z"), ("fusermount", "-u", "-z"), ("umount", "-l"))
"""The first two are for users other than root, who may unmount only their own FUSE file systems."""


def unmount(directory: Path) -> Path | None:
    """Unmount every file system below a directory: its files would be deleted with those of the directory.

    The server of a mounted bucket is not one of the worker's processes: gcsfuse starts it without their variables. It
    ends when the bucket is unmounted and no program has a file open there.

    Returns:
        A mount that is still there; None if there is none.
    """
    for path in mounts_below(directory):
        for command in _COMMANDS:
            with suppress(FileNotFoundError, subprocess.TimeoutExpired):
                if not subprocess.run([*command, path], check=False, capture_output=True, timeout=TIMEOUT).returncode:
                    break
    return next(iter(mounts_below(directory)), None)


def mounts_below(directory: Path) -> list[Path]:
    """Return where file systems are mounted at or below a directory, the innermost first; nothing without Linux.

    No file below it is looked at: a mount whose server has died answers with an error, or not at all.
    """
    if not _MOUNTS.exists():
        return []
    real = os.path.realpath(directory)
    points = {line.split()[4] for line in _MOUNTS.read_text(errors="surrogateescape").splitlines()}
    paths = {Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)) for point in points}
    return sorted((path for path in paths if path.is_relative_to(real)), reverse=True)

"""Unmount what a worker's programs have mounted in its home directory."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

from tpux.helpers import mounts_below

TIMEOUT = 10.0
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

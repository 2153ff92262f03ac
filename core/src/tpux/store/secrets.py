"""The secrets of a stored job: deleted when it has ended, and stored again when it starts again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import cast

from tpux.errors import UsageError
from tpux.store import files
from tpux.store.record import Record


def restore_secrets(record: Record, environ: Mapping[str, str] = os.environ) -> None:
    """Store the secrets of an ended job again, which were deleted when it ended.

    The file is written without secrets, too: while it is there, the workers are to be cleaned up at the next end.

    Args:
        record: the job, which is about to start again.
        environ: has the values of the secrets.

    Raises:
        UsageError: a secret is not set in `environ`.
    """
    path = record.config_directory / "secrets.json"
    names = cast("list[str]", (files.load(record.config_directory / "resolved.json") or {}).get("secrets", []))
    if path.exists():
        return
    if missing := [name for name in names if name not in environ]:
        raise UsageError(
            f"the secret {missing[0]} was deleted when the job ended",
            where=f"job {int(record.id)}",
            hint=f"set {', '.join(missing)} in the environment and try again",
        )
    # No other process writes it: the supervisor has released the lock of a job whose secrets are deleted.
    files.write_atomic(path, json.dumps({name: environ[name] for name in names}).encode())

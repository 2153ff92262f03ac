"""The emulator's log file: requests with their answers, state transitions, faults."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

_FORMAT = "%(asctime)s.%(msecs)03d %(short)-8s %(message)s"


class _ShortName(logging.Filter):
    """Adds the last part of the logger's name: requests, cloud, faults, workers."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.short = record.name.rpartition(".")[2].replace("tpux_emulator", "emulator")
        return True


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Append the logs of the emulator and its HTTP server to a file.

    Args:
        path: the file; created with mode 0600, since requests may have secrets in their metadata.
    """
    path.touch(mode=0o600)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    handler.addFilter(_ShortName())
    parts = [logging.getLogger("tpux_emulator"), logging.getLogger("uvicorn.error")]
    for part in parts:
        part.addHandler(handler)
    parts[0].setLevel(logging.INFO)
    parts[1].setLevel(logging.WARNING)
    try:
        yield
    finally:
        for part in parts:
            part.removeHandler(handler)
        handler.close()

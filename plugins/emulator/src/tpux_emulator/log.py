"""The emulator's log: what it was asked, what it answered, what it did on its own."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

_FORMAT = "%(asctime)s.%(msecs)03d %(short)-8s %(message)s"


class _Short(logging.Filter):
    """Names each part by its last word: requests, cloud, faults, workers."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.short = record.name.rpartition(".")[2].replace("tpux_emulator", "emulator")
        return True


@contextlib.contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Append all that the emulator and its HTTP server log to a file.

    Args:
        path: the file; it is made with mode 0600, since requests may carry secrets in metadata.
    """
    path.touch(mode=0o600)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    handler.addFilter(_Short())
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

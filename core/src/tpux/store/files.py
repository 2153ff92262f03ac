"""Files that survive a crash: replaced whole, appended whole, read back whatever happened."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue


def write_atomic(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Give `path` this content, whole or not at all.

    Args:
        path: the file; its directory must be there.
        content: all of it.
        mode: its permissions, from the first byte on.
        durable: whether it must survive the machine's own crash too (`fsync`).

    Raises:
        OSError: the disk is full, the directory is read-only, ...
    """
    import tempfile  # not for those that only read

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def append(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Add `content` to the end of `path`; cut off again what was written of it when not all could be."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        end = os.fstat(handle).st_size
        try:
            _write_all(handle, content)
            if durable:
                os.fsync(handle)
        except OSError:
            os.ftruncate(handle, end)
            raise
    finally:
        os.close(handle)


def append_output(path: Path, content: bytes) -> None:
    """Add a piece of a program's output; what is written of it stays, for the log's length is the next offset."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _write_all(handle, content)
    finally:
        os.close(handle)


def _write_all(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


def dump(data: Mapping[str, JsonValue], *, indent: int | None = None) -> bytes:
    """JSON with a newline at its end."""
    return json.dumps(data, indent=indent, ensure_ascii=False).encode() + b"\n"


def load(path: Path) -> dict[str, JsonValue] | None:
    """The JSON object in `path`; None where there is no file, or none that can be read as one."""
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def length(path: Path) -> int:
    """How many bytes `path` has; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

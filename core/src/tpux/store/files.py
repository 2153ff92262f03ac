"""Files that survive a crash: replaced atomically, appended completely or not at all."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from tpux.errors import TpuxError
from tpux.model.json import JsonValue, build, dump_fields

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
T = TypeVar("T", bound="DataclassInstance")

MOUNTS = Path("/proc/self/mountinfo")
"""The mounts that this process sees; proc(5) describes the fields."""


def write_atomic(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the content of `path`, atomically.

    Args:
        path: the file; its directory must exist.
        content: the new content.
        mode: the permissions, from the first byte on.
        durable: it must survive a crash of the machine, not only of the process (`fsync`).

    Raises:
        OSError: the disk is full, the directory is read-only, ...
    """
    import tempfile  # slow, and most commands only read

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
    if durable:
        sync_directory(path.parent)


def rename(source: Path, target: Path) -> None:
    """Rename a file or directory, so that a crash of the machine does not undo it.

    Raises:
        OSError: it cannot be renamed, or a directory cannot be synced.
    """
    if source.is_dir():
        sync_directory(source)
    source.rename(target)
    sync_directory(target.parent)


def sync_directory(path: Path) -> None:
    """Write a directory's entries to the disk: without that a crash of the machine may undo a rename.

    Raises:
        OSError: they cannot be written.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append(path: Path, content: bytes) -> None:
    """Append `content` to `path` completely, or not at all, and sync it to the disk.

    Raises:
        OSError: it could not be written; nothing of it remains.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        end = os.fstat(handle).st_size
        try:
            _write_all(handle, content)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, end)
            raise
    finally:
        os.close(handle)


def append_output(path: Path, content: bytes) -> None:
    """Append a piece of a program's output. A part that was written remains: the log's length is the next offset.

    Raises:
        OSError: not all of it could be written.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _write_all(handle, content)
    finally:
        os.close(handle)


def _write_all(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


def dump(data: Mapping[str, JsonValue]) -> bytes:
    """Return the object as JSON with a newline at the end. Text that is not valid Unicode is escaped."""
    try:
        return json.dumps(data, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # an error message that quotes the name of a file
        return json.dumps(data).encode() + b"\n"


def load(path: str | Path) -> dict[str, JsonValue] | None:
    """Return the JSON object in `path`; None if there is no file, or it does not hold a JSON object."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (called for each job)
            return parse(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return None


def parse(content: bytes) -> dict[str, JsonValue] | None:
    """Return the JSON object in the content of a file; None if it is something else."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):  # the latter: what another user has written
        return None
    return data if isinstance(data, dict) else None


class JsonFile(Generic[T]):
    """A small JSON file with the fields of a dataclass: of one writer at a time, and of any number of readers.

    Args:
        path: the file.
        model: the dataclass.
        durable: it must survive a crash of the machine, not only of the process (`fsync`).
    """

    def __init__(self, path: str | Path, model: type[T], *, durable: bool = True) -> None:
        self.path = Path(path)
        self._model = model
        self._durable = durable

    def load(self) -> T | None:
        """Return what the file holds; None if there is none, or it is torn or of another version.

        Raises:
            OSError: it cannot be read.
        """
        try:
            return None if (data := load(self.path)) is None else build(self._model, data)
        except ValueError:
            return None

    def save(self, value: T) -> None:
        """Replace the file, atomically; one with the same content is left as it is.

        Raises:
            FileNotFoundError: its directory does not exist: the job was removed.
            OSError: it cannot be written.
        """
        content = dump(dump_fields(value))
        with suppress(FileNotFoundError):
            if self.path.read_bytes() == content:
                return
        write_atomic(self.path, content, durable=self._durable)

    def remove(self) -> None:
        """Remove the file, if there is one.

        Raises:
            OSError: it cannot be removed.
        """
        self.path.unlink(missing_ok=True)


def mounts_below(directory: Path) -> list[Path]:
    """Return where file systems are mounted at or below a directory, the innermost first.

    To remove a directory tree would delete what is mounted in it too, such as the content of a bucket. No file below
    it is looked at: a mount whose server has died answers with an error, or not at all.
    """
    real = os.path.realpath(directory)
    return sorted((path for path in mount_points() if path.is_relative_to(real)), reverse=True)


def mount_points() -> set[Path]:
    """Return where file systems are mounted; nothing on a system other than Linux."""
    if not MOUNTS.exists():
        return set()
    points = (line.split()[4] for line in MOUNTS.read_text(errors="surrogateescape").splitlines())
    return {Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)) for point in points}


def refuse_mounts(directory: Path) -> None:
    """Refuse to remove a directory below which a file system is mounted.

    Raises:
        TpuxError: one is.
    """
    if mounts := mounts_below(directory):
        hint = f"it would be deleted too; unmount it: fusermount3 -u {shlex.quote(str(mounts[0]))} (or umount)"
        raise TpuxError(f"a file system is mounted at {mounts[0]}", where=str(directory), hint=hint)


def length(path: str | Path) -> int:
    """Return the size of `path` in bytes; 0 if it does not exist."""
    try:
        return os.stat(path).st_size  # noqa: PTH116  (called for each job)
    except FileNotFoundError:
        return 0

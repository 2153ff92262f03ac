"""Snapshots: immutable copies of directories on this machine, below `$TPUX_HOME/code`.

A snapshot is a list of files (`snapshots/ID.json`), whose contents are stored once for all snapshots (`objects/`). Its
id is a digest of the list, so two jobs with the same files share it.

Whoever makes snapshots holds a shared lock: meanwhile core deletes none. The times of all files of a new snapshot are
set, so that core keeps them until a job names them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import stat
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

import portalocker

from tpux import TpuxError, api
from tpux_worker_tools.requirements import CodeFile

_CHUNK = 2**20
_MOST_LINKS = 8
"""How many links in a row are followed."""
_ID_LENGTH = 16
_LOCK_TIMEOUT = 60.0
_FIRST_TIME = 978_307_200
"""2001-01-01, the earliest modification time of a file on a worker: zip has none before 1980."""
_TIMES = 20 * 365 * 86_400
"""How many different modification times there are, in seconds: none is in the future."""
_NEW = ".new-"
"""How the names of files begin that are being written."""
_archiving = threading.Lock()


class File(NamedTuple):
    """A file of a snapshot.

    Attributes:
        path: relative to the directory.
        kind: a file, an executable file, or a symbolic link.
        content: the digest of its content; the target of a link.
        size: in bytes; 0 for a link.
    """

    path: str
    kind: Literal["file", "program", "link"]
    content: str
    size: int


@dataclass(frozen=True)
class Snapshot:
    """A stored snapshot."""

    id: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """The total size of its files in bytes."""
        return sum(file.size for file in self.files)


class Snapshots:
    """The snapshots of one `$TPUX_HOME`.

    Args:
        home: the directory `$TPUX_HOME`; by default that of this process.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._root = (home or api.home()) / "code"
        self._objects = self._root / "objects"
        self._lists = self._root / "snapshots"
        self._archives = self._root / "archives"

    def make(self, directory: Path, paths: Iterable[str]) -> Snapshot:
        """Store a snapshot of these files of a directory. It is kept for an hour, until a job must name it.

        Raises:
            TpuxError: a file cannot be read.
            OSError: it cannot be stored.
        """
        with self._locked():
            files = tuple(self._add(directory, path) for path in sorted(paths))
            text = json.dumps(files).encode()
            made = Snapshot(hashlib.sha256(text).hexdigest()[:_ID_LENGTH], files)
            path = self._list(made.id)
            with _created(path) as target:  # also if it is there: its time is now
                target.write(text)
        return made

    def load(self, snapshot: str) -> Snapshot:
        """Return a stored snapshot.

        Raises:
            TpuxError: it is not stored, or damaged.
        """
        try:
            text = self._list(snapshot).read_bytes()
        except OSError as error:
            raise _damaged(snapshot, error.strerror or str(error)) from error
        if hashlib.sha256(text).hexdigest()[:_ID_LENGTH] != snapshot:
            raise _damaged(snapshot, "its list of files has changed")
        return Snapshot(snapshot, tuple(File(*file) for file in json.loads(text)))

    def changes(self, snapshot: str, directory: Path, paths: Iterable[str]) -> list[str]:
        """Return the files of a directory that a snapshot has not, or with another content, and those that are gone.

        Args:
            snapshot: the snapshot.
            directory: the directory.
            paths: its files.

        Raises:
            TpuxError: the snapshot is damaged, or a file cannot be read.
        """
        then = {file.path: file for file in self.load(snapshot).files}
        now = {path: _describe(directory, path) for path in paths}
        return sorted(path for path in then.keys() | now.keys() if then.get(path) != now.get(path))

    def find(self, snapshots: Iterable[str]) -> list[Snapshot]:
        """Return those of the snapshots that are stored."""
        found = []
        for snapshot in snapshots:
            with suppress(TpuxError):
                found.append(self.load(snapshot))
        return found

    def archive(self, snapshot: Snapshot, base: Snapshot | None) -> Path:
        """Return a compressed tar archive of those files of a snapshot that `base` does not have; made once.

        Raises:
            TpuxError: the snapshot is damaged.
            OSError: the archive cannot be written.
        """
        path = self._archives / f"{snapshot.id}-{base.id if base else 'all'}.tar.gz"
        known = set(base.files) if base else set[File]()
        with _archiving:  # workers are prepared in parallel, and need the same archive
            if not path.exists():
                with self._locked(), _created(path) as target:
                    self._write_archive(target, [file for file in snapshot.files if file not in known])
        return path

    def stored_files(self, snapshot: str) -> list[Path]:
        """Return the files that a snapshot consists of, and its archives; none if it is not stored.

        Raises:
            TpuxError: it is damaged.
        """
        if not self._list(snapshot).exists():
            return []
        contents = [self._object(file) for file in self.load(snapshot).files if file.kind != "link"]
        return [self._list(snapshot), *contents, *self._archives.glob(f"{snapshot}-*")]

    def contents(self, snapshot: str) -> dict[str, CodeFile]:
        """Return the files of a snapshot with their contents; links to other files of it included.

        Raises:
            TpuxError: it is not stored, or damaged.
        """
        files = {file.path: file for file in self.load(snapshot).files}
        found = {}
        for path, file in files.items():
            target: File | None = file
            for _ in range(_MOST_LINKS):
                if target is None or target.kind != "link":
                    break
                target = files.get(os.path.normpath(os.path.join(os.path.dirname(target.path), target.content)))  # noqa: PTH118, PTH120
            if target is not None and target.kind != "link":
                found[path] = CodeFile(target.content, self._object(target))
        return found

    def _add(self, directory: Path, path: str) -> File:
        """Store the content of a file. Without `Path`, since a directory may have thousands."""
        file = _describe(directory, path)
        if file.kind == "link":
            return file
        with suppress(FileNotFoundError):
            if self._object(file).stat().st_size == file.size:  # another one was damaged by a crash of the machine
                os.utime(self._object(file))
                return file
        with _opened(f"{directory}/{path}") as content:
            stored, size = self._store(content)
        return file._replace(content=stored, size=size)

    def _store(self, content: IO[bytes]) -> tuple[str, int]:
        """Copy a file's content, which may have changed since it was first read; return its digest and size."""
        self._objects.mkdir(parents=True, exist_ok=True, mode=0o700)
        digest = hashlib.sha256()
        handle, name = tempfile.mkstemp(dir=self._objects, prefix=_NEW)
        try:
            with os.fdopen(handle, "wb") as copy:
                for chunk in _chunks(content):
                    digest.update(chunk)
                    copy.write(chunk)
                copy.flush()
                os.fsync(copy.fileno())
            path = self._objects / digest.hexdigest()[:2] / digest.hexdigest()[2:]
            path.parent.mkdir(exist_ok=True, mode=0o700)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return digest.hexdigest(), path.stat().st_size

    def _write_archive(self, target: IO[bytes], files: Sequence[File]) -> None:
        # GNU's format stores names that are not UTF-8 as they are. No times of this machine: the same files give the
        # same archive.
        packed = gzip.GzipFile(filename="", mode="wb", compresslevel=3, fileobj=target, mtime=0)
        with packed, tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as tar:
            for file in files:
                entry = tarfile.TarInfo(file.path)
                entry.mode, entry.mtime = 0o755 if file.kind == "program" else 0o644, _FIRST_TIME
                if file.kind == "link":
                    entry.type, entry.linkname = tarfile.SYMTYPE, file.content
                    tar.addfile(entry)
                    continue
                entry.size, entry.mtime = file.size, _time_of(file)
                try:
                    if (path := self._object(file)).stat().st_size != file.size:
                        raise _damaged(file.path, "its content has another size")  # a crash of the machine
                    with path.open("rb") as content:
                        tar.addfile(entry, content)
                except FileNotFoundError as error:
                    raise _damaged(file.path, "its content is missing") from error

    def _list(self, snapshot: str) -> Path:
        return self._lists / f"{snapshot}.json"

    def _object(self, file: File) -> Path:
        return Path(f"{self._objects}/{file.content[:2]}/{file.content[2:]}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._root / "lock"
        flags = portalocker.LockFlags.SHARED | portalocker.LockFlags.NON_BLOCKING
        lock = portalocker.Lock(path, mode="a", timeout=_LOCK_TIMEOUT, check_interval=0.02, flags=flags)
        try:
            lock.acquire()
        except portalocker.LockException as error:
            message = f"another process has removed stored code for {_LOCK_TIMEOUT:.0f} s"
            raise TpuxError(message, where=str(path), hint="try again") from error
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _created(path: Path) -> Iterator[IO[bytes]]:
    """Create a file that appears complete, and survives a crash of the machine, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _describe(directory: Path, path: str) -> File:
    """Return a file of a directory as a snapshot lists it. Without `Path`, since a directory may have thousands.

    Raises:
        TpuxError: it cannot be read.
    """
    source = f"{directory}/{path}"
    try:
        status = os.lstat(source)
        if stat.S_ISLNK(status.st_mode):
            return File(path, "link", os.readlink(source), 0)  # noqa: PTH115
    except OSError as error:
        raise _unreadable(source, error) from error
    digest = hashlib.sha256()
    with _opened(source) as content:
        for chunk in _chunks(content):
            digest.update(chunk)
        return File(path, "program" if status.st_mode & 0o100 else "file", digest.hexdigest(), content.tell())


def _opened(source: str) -> IO[bytes]:
    """Open a file of the user's.

    Raises:
        TpuxError: it cannot be read.
    """
    try:
        return open(source, "rb")  # noqa: PTH123  (closed by the caller)
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: str, error: OSError) -> TpuxError:
    message = f"a file cannot be read: {error.strerror}"
    return TpuxError(message, where=source, hint="repair it, or add it to code.exclude")


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _time_of(file: File) -> int:
    """Return a file's modification time on the workers, which another content changes.

    Python uses a `.pyc` file if the time and the size of its source are unchanged, so a fixed time would run old code
    after an edit that keeps the size. The time depends on nothing else, so that a file is the same in all snapshots.
    """
    return _FIRST_TIME + int(file.content[:16], 16) % _TIMES


def _damaged(what: str, why: str) -> TpuxError:
    return TpuxError(f"the stored code is damaged: {what}: {why}", hint="tpux sync JOB stores it again")

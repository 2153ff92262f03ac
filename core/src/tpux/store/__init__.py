"""All that tpux remembers, below `$TPUX_HOME`: docs/architecture.md draws it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.errors import TpuxError, UsageError
from tpux.store import files, locks
from tpux.store.locks import Lock
from tpux.store.record import Record

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue

Files = Mapping[str, tuple[bytes, int]]
"""Contents and modes by name, below a job's directory."""


class Store:
    """The jobs of all users of one `$TPUX_HOME`.

    Args:
        home: the directory; `$TPUX_HOME` where it is not given.
        user: whose jobs commands act on.
    """

    def __init__(self, home: Path | None = None, user: str | None = None) -> None:
        self.home = home or env.home()
        self.user = user or env.user()
        self.jobs = self.home / "jobs"
        self.shared = self.jobs / ".tpux"
        self._locks = self.shared / "locks"
        self.supervisor = self.home / "supervisor" / self.user

    @property
    def id(self) -> str:
        """The store's random id, made when it is first asked for."""
        path = self.home / "store.json"
        if (data := files.load(path)) is None:
            import secrets

            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locks.held(self.shared / "lock", what="the store's lock"):
                if (data := files.load(path)) is None:
                    data = {"id": secrets.token_hex(4)}
                    files.write_atomic(path, files.dump(data))
        return str(data["id"])

    def record(self, job: str, user: str | None = None) -> Record:
        """The job of that id and user, whether it is there or not."""
        user = user or self.user
        return Record(self.jobs / user / job, Lock(self._locks / f"{user}-{job}"))

    def find(self, job: str) -> Record:
        """One of the user's own jobs, by its id (leading zeros may be left out), or by its name.

        Raises:
            UsageError: there is none, or it is another user's, or several have that name.
        """
        name = job.zfill(6) if job.isdigit() else job
        record = self.record(name)
        if name.isdigit() and record.directory.is_dir():
            return record
        if named := [record for record in self.records() if _is_called(record, job)]:
            if len(named) == 1:
                return named[0]
            ids = ", ".join(record.directory.name for record in named)
            raise UsageError(f"{len(named)} jobs are called {job}", hint=f"say which one by its id: {ids}")
        for owner in self.users():
            if name.isdigit() and (self.jobs / owner / name).is_dir():
                raise UsageError(
                    f"job {name} belongs to {owner}", hint=f"you are {self.user}: only {owner} may act on it"
                )
        raise UsageError(f"there is no job {job}", hint="`tpux list --all` shows all of yours")

    def users(self) -> list[str]:
        """Everyone who has jobs here."""
        try:
            return sorted(e.name for e in os.scandir(self.jobs) if not e.name.startswith("."))
        except FileNotFoundError:
            return []

    def ids(self, user: str | None = None) -> list[str]:
        """The ids of a user's jobs, oldest first."""
        try:
            entries = os.listdir(self.jobs / (user or self.user))  # noqa: PTH208  (half the time of iterdir)
        except FileNotFoundError:
            return []
        return sorted((name for name in entries if name.isdigit()), key=int)

    def records(self, user: str | None = None) -> Iterator[Record]:
        """A user's jobs, oldest first."""
        return (self.record(job, user) for job in self.ids(user))

    def create(self, build: Callable[[str], tuple[Files, Mapping[str, JsonValue]]], *, at: float) -> Record:
        """Make the next job: its directory appears whole, with its first event, or not at all.

        Args:
            build: from the job's id, the files of its directory and the facts of its `created` event.
            at: now, in seconds since the epoch.

        Raises:
            OSError: the disk is full, the directory is read-only, ...
        """
        own = self.jobs / self.user
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locks.held(self.shared / "lock", what="the next job id"):
            job = self._next_id()
            draft = own / f".new-{job}"
            shutil.rmtree(draft, ignore_errors=True)  # its writer died: the lock is ours
            try:
                self._fill(draft, *build(job), at)
                draft.rename(own / job)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            with suppress(OSError):  # the job is there, and who finds its id taken counts on from it
                files.write_atomic(self.shared / "next_id", f"{int(job) + 1}\n".encode())
        return self.record(job)

    def _next_id(self) -> str:
        try:
            number = int((self.shared / "next_id").read_text())
        except (FileNotFoundError, ValueError):
            number = 1 + max((int(job) for user in self.users() for job in self.ids(user)), default=0)
        # A crash between the rename and the counter leaves the counter one behind.
        while any((self.jobs / user / f"{number:06d}").exists() for user in self.users()):
            number += 1
        return f"{number:06d}"

    def _fill(self, draft: Path, content: Files, facts: Mapping[str, JsonValue], at: float) -> None:
        (draft / "logs").mkdir(parents=True, mode=0o700)
        for name, (data, mode) in content.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_atomic(draft / name, data, mode=mode)
        record = Record(draft, Lock(self._locks / f"{self.user}-{draft.name.removeprefix('.new-')}"))
        if not record.lock.acquire():
            raise TpuxError(f"the lock of the new job {draft.name} is held", where=str(record.lock.path))
        try:
            record.write("created", at, **facts)
        finally:
            record.lock.release()

    def remove(self, record: Record) -> None:
        """Drop the record of a job whose lock is held here; its id is not given out again."""
        grave = record.directory.with_name(f".gone-{record.directory.name}")
        record.directory.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)

    def sweep(self) -> None:
        """Clear away what was left of removed jobs by one that was killed meanwhile; only the supervisor may."""
        for grave in (self.jobs / self.user).glob(".gone-*"):
            shutil.rmtree(grave, ignore_errors=True)


def _is_called(record: Record, name: str) -> bool:
    with suppress(TpuxError):  # one that cannot be read can still be named by its id
        return record.refresh().name == name
    return False

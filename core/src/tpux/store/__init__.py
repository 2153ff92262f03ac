"""Everything that tpux keeps on this machine, below `$TPUX_HOME`; docs/files.md describes the files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.errors import NoSuchJobError, TpuxError, UsageError
from tpux.store import files, identity, ids, locks, open_jobs
from tpux.store.locks import Lock
from tpux.store.published import ACTIVE, Published, publish_state
from tpux.store.record import Record

if TYPE_CHECKING:
    from tpux.model.events import Created
    from tpux.model.json import JsonValue

Files = Mapping[str, tuple[bytes, int]]
"""Contents and modes by name, below a job's directory."""

NEXT_ID = "next_id"
"""The file that each user of a shared store publishes: no job below that number is new."""


class Store:
    """The jobs of all users of one `$TPUX_HOME`.

    Args:
        home: the directory; `$TPUX_HOME` if None.
        user: the user whose jobs commands act on; `$TPUX_USER` or the login name if None.

    Raises:
        TpuxError: the store was written by a newer tpux, or its identity is lost.
    """

    def __init__(self, home: Path | None = None, user: str | None = None) -> None:
        self.home = home or env.home()
        self.user = user or env.user()
        self.jobs = self.home / "jobs"
        self.shared = self.jobs / ".tpux"
        self.root = env.shared_root(self.home)
        self._locks = self.shared / "locks"
        self.supervisor = self.home / "supervisor" / self.user
        self.socket = self.supervisor / "calls" / "socket"
        known = identity.read(self.home)
        self._id = known.id if known else ""

    @property
    def id(self) -> str:
        """The store's random id, which marks its machines and the processes on its workers; made on first use.

        Raises:
            TpuxError: the store has jobs, but the file that holds its id is gone.
        """
        if not self._id:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locks.held(self.shared / "lock", what="the store's lock"):
                if (known := identity.read(self.home)) is None:
                    if any(self.ids(user) for user in self.users()):
                        raise identity.lost(self.home, "the file that identifies this store is missing")
                    common = identity.read(self.root, env.SHARED_MARK) if self.root else None
                    known = common or identity.Identity(os.urandom(4).hex())
                    identity.write(self.home, known.id)
            self._id = known.id
        return self._id

    def require_in_place(self) -> None:
        """Refuse to do anything with the jobs of a store that is in another directory than it was made in.

        Raises:
            MisplacedStoreError: it is, and the user has not said why.
            TpuxError: another process held the store's lock for too long.
            OSError: the directory cannot be read, or was not recorded before and cannot be.
        """
        identity.require_in_place(self.home)
        if (known := identity.read(self.home)) is not None and known.inode is None:
            self.move_here()

    def move_here(self) -> None:
        """Record that the store's directory is the present one.

        Raises:
            TpuxError: the store is new, or another process held its lock for too long.
        """
        with locks.held(self.shared / "lock", what="the store's lock"):
            if (known := identity.read(self.home)) is None:
                raise UsageError("there is no store here", where=str(self.home))
            identity.write(self.home, known.id)

    def set_jobs_aside(self) -> Path:
        """Move the records of all jobs out of the store, which gets another id: the original of this copy has the jobs.

        It can be interrupted at any point, and repeated: until then the store remains out of use.

        Returns:
            The directory that has the records.

        Raises:
            TpuxError: the store is new.
            OSError: they cannot be moved.
        """
        if (known := identity.read(self.home)) is None:
            raise UsageError("there is no store here", where=str(self.home))
        if self.root is not None:
            hint = f"give the copy to nobody: sudo rm -r {self.root}, and then tpux store share"
            raise UsageError("a copy of a store that several users share cannot be one of its own", hint=hint)
        identity.write(self.home, known.id, in_place=False)  # the image of a disk has the inode of its original
        aside = self.home / f"jobs-of-{known.id}"
        if self.jobs.exists():
            others = (aside.with_name(f"{aside.name}-{number}") for number in count(2))
            aside = next(name for name in chain([aside], others) if not name.exists())
            files.rename(self.jobs, aside)
        self._id = os.urandom(4).hex()
        identity.write(self.home, self._id)
        return aside

    def record(self, job: str, user: str | None = None) -> Record:
        """Return the record of the job with this id, whether it exists or not."""
        user = user or self.user
        # Strings, since joining paths takes as long as reading a job.
        return Record(f"{self.jobs}/{user}/{job}", Lock(f"{self._locks}/{user}-{job}"))

    def find(self, job: str, *, note: Callable[[str], None] | None = None) -> Record:
        """Return one of the user's own jobs by its id, with or without leading zeros, by its name, or `-`.

        Args:
            job: the id or the name; `-` is the job that was created last.
            note: called with which job is meant by `-`, or by a name that several have: the newest active one, else
                the newest one. Without it such a name is refused.

        Raises:
            UsageError: it does not exist, or belongs to another user; several have that name, and there is no `note`.
        """
        if job == "-":
            return self._last(note)
        is_id = job.isascii() and job.isdigit() and len(job) <= ids.LONGEST
        name = ids.normalize(job) if is_id else job
        record = self.record(name)
        if is_id and record.directory.is_dir():
            return record
        # Digits are an id, or a mistyped one would mean another job.
        if not is_id and (named := [record for record in self.records() if _has_name(record, job)]):
            if len(named) == 1:
                return named[0]
            choices = ", ".join(f"{int(record.id)} ({record.state.state})" for record in named)
            if note is None:
                raise UsageError(f"{len(named)} jobs are called {job}", hint=f"give one of their ids: {choices}")
            chosen = max(named, key=lambda record: (not record.state.ended, int(record.id)))
            note(f"{len(named)} jobs are called {job}: {choices}; using job {int(chosen.id)}")
            return chosen
        owners = [owner for owner in self.users() if is_id and (self.jobs / owner / name).is_dir()]
        if is_id and self.root is not None:
            owners += [file.user for file in Published(self.home, self.shared).read(f"{ACTIVE}/{name}")]
        for owner in owners:
            if owner != self.user:
                raise UsageError(
                    f"job {int(name)} belongs to {owner}", hint=f"you are {self.user}: only {owner} may act on it"
                )
        hint = "`tpux list --all` shows all your jobs"
        if not is_id:
            hint += "; the commands for machines without a job are exec, ssh, cp, diagnose and solve"
        raise NoSuchJobError(f"there is no job {job}", hint=hint)

    def _last(self, note: Callable[[str], None] | None) -> Record:
        if not (ids := self.ids()):
            raise NoSuchJobError("there is no job yet", hint="create one: tpux run CONFIG")
        record = self.record(ids[-1])
        if note is not None:
            note(f"- is job {int(record.id)} ({record.refresh().name})")
        return record

    def users(self) -> list[str]:
        """Return the users who have jobs in this store."""
        try:
            return sorted(e.name for e in os.scandir(self.jobs) if not e.name.startswith("."))
        except FileNotFoundError:
            return []

    def ids(self, user: str | None = None) -> list[str]:
        """Return the ids of a user's jobs, oldest first."""
        try:
            entries = os.listdir(self.jobs / (user or self.user))  # noqa: PTH208  (half the time of iterdir)
        except FileNotFoundError:
            return []
        return sorted((name for name in entries if name.isdigit()), key=int)

    def records(self, user: str | None = None) -> Iterator[Record]:
        """Yield the records of a user's jobs, oldest first."""
        return (self.record(job, user) for job in self.ids(user))

    def open_ids(self, user: str | None = None) -> set[str]:
        """Return the ids of a user's open jobs, and perhaps of some others. The first call reads all jobs."""
        directory = f"{self.shared}/open/{user or self.user}"
        with suppress(OSError):
            if open_jobs.COMPLETE in (found := {*os.listdir(directory)}):  # noqa: PTH208  (as in `ids`)
                return found
        found = {record.id for record in self.records(user) if not _is_closed(record)}
        with suppress(OSError):  # those of another user
            for job in [*found, open_jobs.COMPLETE]:
                open_jobs.mark(f"{directory}/{job}")
        return found

    def create(self, build: Callable[[str], tuple[Files, Created]], *, at: float) -> Record:
        """Create the next job: its directory appears complete, with its first event, or not at all.

        Args:
            build: gives, for the job's id, the files of its directory and its first event.
            at: the current time, in seconds since the epoch.

        Raises:
            MisplacedStoreError: the store was moved or copied, and the user has not said which.
            OSError: the disk is full, the directory is read-only, ...
        """
        _ = self.id  # from the first job on, the store has an identity to lose
        self.require_in_place()
        own = self.jobs / self.user
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        counter = self.shared / "next_id"
        with locks.held(self.shared / "lock", what="the next job id"):
            job = ids.allocate(counter, self._all_ids, self._exists) if self.root is None else self._reserve_id()
            draft = own / f".new-{job}"
            shutil.rmtree(draft, ignore_errors=True)  # left by a process that died: the lock is ours
            try:
                self._fill(draft, *build(job), at)
                files.rename(draft, own / job)
            except BaseException:
                with suppress(OSError, TpuxError):  # `purge` does it
                    _discard(draft)
                raise
            ids.advance(counter, job)
        return self.record(job)

    def _reserve_id(self) -> str:
        """Return the next id that no user of the shared store has; nobody else gets it, whatever happens now."""
        published = Published(self.home, self.shared)
        with locks.held(published.lock(NEXT_ID), what="the next job id"):
            job = ids.next_of(published.read(NEXT_ID), self._exists)
            published.write(NEXT_ID, f"{int(job) + 1}\n".encode())
        return job

    def _all_ids(self) -> Iterator[str]:
        return (job for user in self.users() for job in self.ids(user))

    def _exists(self, job: str) -> bool:
        return any((self.jobs / user / job).exists() for user in self.users())

    def _fill(self, draft: Path, content: Files, created: Created, at: float) -> None:
        (draft / "logs").mkdir(parents=True, mode=0o700)
        for name, (data, mode) in content.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_atomic(draft / name, data, mode=mode)
        record = Record(draft, Lock(self._locks / f"{self.user}-{draft.name.removeprefix('.new-')}"))
        if not record.lock.acquire():
            raise TpuxError(f"the lock of the new job {draft.name} is held", where=str(record.lock.path))
        try:
            record.write(created, at)
        finally:
            record.lock.release()

    def creation_lock(self) -> AbstractContextManager[None]:
        """Hold the lock that the creation of a job needs.

        Raises:
            TpuxError: another process held it for too long.
        """
        return locks.held(self.shared / "lock", what="the creation of a job")

    def remove(self, record: Record) -> None:
        """Remove the directory of a job whose lock the caller holds.

        Raises:
            TpuxError: a file system is mounted below it; nothing was removed.
        """
        files.refuse_mounts(record.directory)
        with suppress(TpuxError, OSError):  # one that cannot be read; a full disk, which a removal makes room on
            if record.refresh().state == "succeeded":
                self._note("succeeded.jsonl", {"job": record.id})
        trash = record.directory.with_name(f".deleted-{record.directory.name}")
        with suppress(FileNotFoundError):  # an earlier try has renamed it, and yet has reported an error
            record.directory.rename(trash)
        open_jobs.unmark(open_jobs.mark_of(str(record.directory)))
        publish_state(str(record.directory), None)
        shutil.rmtree(trash, ignore_errors=True)

    def succeeded(self, job: str) -> bool:
        """Return whether a job had succeeded when its record was removed."""
        return self._noted("succeeded.jsonl", job) is not None

    def add_unreleased(self, job: str, machines: str) -> None:
        """Write what remains of a job whose record is removed: machines that were not released, or programs.

        Args:
            job: its id, which no other job ever has.
            machines: what remains, for people.

        Raises:
            OSError: it could not be written.
        """
        self._note("unreleased.jsonl", {"job": job, "machines": machines})

    def unreleased(self, job: str) -> str:
        """Return what remained of a job when its record was removed, for people; "" if nothing did."""
        return str((self._noted("unreleased.jsonl", job) or {}).get("machines", ""))

    def _note(self, name: str, facts: Mapping[str, JsonValue]) -> None:
        self.supervisor.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.append(self.supervisor / name, b"\n" + files.dump(facts))  # the last line may be torn: not to its end

    def _noted(self, name: str, job: str) -> Mapping[str, JsonValue] | None:
        """Return the last of the lines about a job; None if there is none. A torn line is skipped."""
        try:
            lines = (self.supervisor / name).read_bytes().splitlines()
        except FileNotFoundError:
            return None
        return next(
            (facts for line in reversed(lines) if (facts := files.parse(line)) and facts.get("job") == job), None
        )

    def purge(self) -> None:
        """Remove what a killed process left of jobs that it was removing, or creating. Only the supervisor may call it.

        Raises:
            TpuxError: another process held the lock of the creation of a job for too long.
            OSError: something cannot be removed.
        """
        for trash in (self.jobs / self.user).glob(".deleted-*"):
            if not files.mounts_below(trash):
                _discard(trash)
        if drafts := [*(self.jobs / self.user).glob(".new-*")]:
            with self.creation_lock():
                for draft in drafts:
                    _discard(draft)


def _discard(directory: Path) -> None:
    """Remove the directory of a job that is no job any more, or not yet, after what is published of it."""
    if directory.is_dir():  # else it was renamed: it is a job
        publish_state(str(directory), None)
        shutil.rmtree(directory, ignore_errors=True)


def _has_name(record: Record, name: str) -> bool:
    with suppress(TpuxError):  # one that cannot be read can still be named by its id
        return record.refresh().name == name
    return False


def _is_closed(record: Record) -> bool:
    with suppress(TpuxError):  # whoever reads it reports that
        return not open_jobs.is_open(record.refresh())
    return False

"""Files that all users of a store can read, while each user writes only below a directory of its own.

In a store that several users share (`tpux store share`) they are in `published/USER`, which the group can read. What
counts there is whose file it is, not what it says: a file that another user has planted is not read, a link is not
followed. A store of one user has them in its own directory.
"""

from __future__ import annotations

import errno
import grp
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.errors import TpuxError, UsageError
from tpux.store import files

if TYPE_CHECKING:
    from tpux.store.state import State

DIRECTORY = "published"
LOCK = "lock"
"""The file in a shared store whose lock all users can hold."""
ACTIVE = "active"
"""The directory, in a user's, that has a file for each active job: the jobs whose labels its machines may have."""
LARGEST = 1 << 20
"""Bytes; a file that is larger is not read."""
HIGHEST = 10**12
"""A number of another user that is higher was not reached by counting."""
_OTHER_KINDS = {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP}
"""How `open` answers to a link, a file in place of a directory, a socket, or a device without a driver."""


@dataclass(frozen=True)
class File:
    """A file that a user has published.

    Attributes:
        name: below the user's directory.
        user: whose it is: the file's owner, "" in a store of one user.
        own: it is this user's.
        content: what is in it; that of another user may be anything.
        changed: when it was written, in seconds since the epoch.
    """

    name: str
    user: str
    own: bool
    content: bytes
    changed: float


class Published:
    """The files that the users of a store publish.

    Args:
        home: the store, as this user sees it.
        unshared: where they are in a store of one user.
    """

    def __init__(self, home: Path, unshared: Path) -> None:
        self._root = env.shared_root(home)
        self._unshared = unshared

    @property
    def shared(self) -> bool:
        """Whether several users share the store."""
        return self._root is not None

    def path(self, name: str) -> Path:
        """Return the path of one of this user's files.

        Raises:
            UsageError: the user's directory is another user's.
            OSError: it cannot be made.
        """
        return self._own() / name

    def lock(self, name: str) -> Path:
        """Return the path of the lock under which users may change what they say about the same thing."""
        return self.path(name).with_suffix(".lock") if self._root is None else self._root / LOCK

    def changing(self, name: str) -> AbstractContextManager[None]:
        """Hold that lock, and wait for it if another process holds it.

        Raises:
            TpuxError: another process held it for too long.
        """
        from tpux.store import locks

        return locks.held(self.lock(name), what=name)

    def write(self, name: str, content: bytes) -> None:
        """Replace one of this user's files, atomically.

        Raises:
            UsageError: the user's directory is another user's.
            OSError: it cannot be written.
        """
        path = self.path(name)
        if self._root is None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        elif not path.parent.is_dir():
            self._make(path.parent)
        files.write_atomic(path, content, mode=0o600 if self._root is None else 0o640)

    def remove(self, name: str) -> None:
        """Remove one of this user's files, if there is one.

        Raises:
            OSError: it cannot be removed.
        """
        self.path(name).unlink(missing_ok=True)

    def read(self, name: str) -> list[File]:
        """Return what the users have published under a name, this user's first, then by their names.

        Raises:
            TpuxError: a user keeps it from others.
            OSError: it cannot be read.
        """
        return [file for user, directory, uid in self._users() if (file := _read(directory, name, user, uid))]

    def files(self, directory: str) -> list[File]:
        """Return what the users have published in a directory, in the same order, by name within a user's.

        Raises:
            TpuxError: a user keeps it from others.
            OSError: it cannot be read.
        """
        found = list[File]()
        for user, path, uid in self._users():
            try:
                with _opened_below(path, directory, os.O_DIRECTORY, uid if user else None) as handle:
                    names = sorted(os.listdir(handle))  # noqa: PTH208  (a descriptor)
            except (FileNotFoundError, _ForeignError):
                continue
            except PermissionError as error:
                raise _kept(user, path / directory) from error
            every = (_read(path, f"{directory}/{name}", user, uid) for name in names if not name.startswith("."))
            found.extend(file for file in every if file is not None)
        return found

    def _users(self) -> Iterator[tuple[str, Path, int]]:
        """Yield the users, each with its directory and number; this user first. Whoever forges a name is left out."""
        own = self._own()
        yield own.name if self._root else "", own, os.geteuid()
        if self._root is None:
            return
        for entry in sorted(os.scandir(own.parent), key=lambda entry: entry.name):
            with suppress(FileNotFoundError):  # it was removed just now
                name, found = entry.name, entry.stat(follow_symlinks=False)
                if name == own.name or name.startswith(".") or not stat.S_ISDIR(found.st_mode):
                    continue
                if _is_called(found.st_uid, name):
                    yield name, Path(entry.path), found.st_uid

    def _own(self) -> Path:
        if self._root is None:
            return self._unshared
        return env.own_directory(self._root / DIRECTORY, 0o2750)

    def _make(self, directory: Path) -> None:
        """Make a directory that appears with its permissions: others must find it readable, or not at all."""
        import tempfile

        if not directory.parent.is_dir():
            self._make(directory.parent)
        new = Path(tempfile.mkdtemp(dir=directory.parent, prefix="."))
        new.chmod(0o2750)
        try:
            new.rename(directory)
        except OSError:  # another process of the user was faster
            new.rmdir()


def reached(file: File, number: int, what: str) -> int:
    """Return a number that a user has published, to which one is added for the next lease, or job.

    Raises:
        TpuxError: it is another user's, and nobody can have reached it: after it there would soon be none left.
    """
    if file.own or number <= HIGHEST:
        return number
    message = f"{file.user or 'another user'} has published an impossible number of a {what}"
    hint = "whose it is, or the owner of the store, can remove the file"
    raise TpuxError(message, where=f"{DIRECTORY}/{file.user}/{file.name}", hint=hint)


def publish_state(job: str, *states: State | None) -> None:
    """Publish what leases of other users need to know of a job: whether it is active, and whose labels it may have.

    Args:
        job: the job's directory.
        states: the states that it may be in by now: more than one before an event is written.

    Raises:
        UsageError: the user's directory is another user's.
        OSError: it cannot be written.
    """
    home, _, name = job.rsplit("/", 2)
    home = home.removesuffix("/jobs")
    if env.shared_root(Path(home)) is None:
        return
    published = Published(Path(home), Path(home))
    name = f"{ACTIVE}/{name.removeprefix('.new-').removeprefix('.deleted-')}"
    active = [found for found in map(of_state, states) if found is not None]
    if not active:
        published.remove(name)
        return
    content = files.dump({"previous": [*sorted({one for found in active for one in found})]})
    with suppress(FileNotFoundError):
        if published.path(name).read_bytes() == content:
            return
    published.write(name, content)


def unpublish_former(job: str, state: State) -> bool:
    """Publish the state that a job has by now; return whether that was possible: until then others wait as before."""
    try:
        publish_state(job, state)
    except (OSError, TpuxError):
        return False
    return True


def share(directory: Path, group: str) -> None:
    """Make a directory a store that the members of a group share; repeated, it completes what was interrupted.

    Raises:
        UsageError: it has other files, others cannot reach it, or the group is not one of this user's.
        UnusableLocksError: the file system has no locks, or they have no effect.
        OSError: it cannot be made.
    """
    from tpux.store import identity, locks

    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError as error:
        hint = f"make it: sudo groupadd {shlex.quote(group)}"
        raise UsageError(f"this machine has no group {group}", hint=hint) from error
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory = directory.parent.resolve() / directory.name
    for parent in directory.parents:
        found = parent.stat()
        if _is_open_to_others(found):
            hint = "choose a place where only root and you can write, such as /srv"
            raise UsageError(f"other users can replace what is in {parent}", hint=hint)
        if not found.st_mode & (stat.S_IXGRP if found.st_gid == gid else stat.S_IXOTH):
            raise UsageError(f"the group {group} cannot reach {directory}", hint=f"type: chmod o+x {parent}")
    mark = directory / env.SHARED_MARK
    with suppress(FileExistsError):
        directory.mkdir(mode=0o750)
    try:
        with _opened_own(directory, os.O_DIRECTORY) as root:
            if {*os.listdir(root)} - {mark.name, LOCK, env.USERS, DIRECTORY}:  # noqa: PTH208  (a descriptor)
                hint = "choose a new directory: jobs do not move to another store"
                raise UsageError(f"{directory} is not empty", hint=hint)
            _give(root, gid, 0o2750)  # first: from now on nobody else can make an entry
            for name in (env.USERS, DIRECTORY):
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=root)
                with _opened_own(directory / name, os.O_DIRECTORY, root) as each:
                    _give(each, gid, 0o3770)
            with _opened_own(directory / LOCK, os.O_CREAT, root) as lock:
                _give(lock, gid, 0o660)
            with suppress(FileNotFoundError), _opened_own(mark, 0, root):
                pass  # only checked
    except PermissionError as error:
        hint = "a member of the group, or root, can: sudo tpux store share ..."
        raise UsageError(f"{directory} cannot get the group {group}", hint=hint) from error
    with locks.held(directory / LOCK, what="the shared store's lock"):
        if identity.read(directory, mark.name) is None:
            content = files.dump({"format": identity.FORMAT, "id": os.urandom(4).hex()})
            files.write_atomic(mark, content, mode=0o640)


def _is_open_to_others(directory: os.stat_result) -> bool:
    """Return whether users other than root and this one can replace the entries of a directory."""
    if directory.st_uid not in {0, os.geteuid()}:
        return True
    if directory.st_mode & stat.S_ISVTX or not directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    try:  # a group that is this user's alone
        group, login = grp.getgrgid(directory.st_gid), env.login_name()
    except (KeyError, UsageError):
        return True
    return bool(directory.st_mode & stat.S_IWOTH) or group.gr_name != login or bool({*group.gr_mem} - {login})


@contextmanager
def _opened_own(path: Path, flags: int, root: int | None = None) -> Iterator[int]:
    """Open what this user has made, so that what is done with it is done with nothing else; below `root`, if given."""
    try:
        with _opened(path if root is None else path.name, flags, os.geteuid(), root, links=1) as handle:
            yield handle
    except _ForeignError as error:
        hint = "choose a new directory; whoever made this one can share it"
        raise UsageError("it is a link, or another user may have made it", where=str(path), hint=hint) from error


def _give(handle: int, gid: int, mode: int) -> None:
    os.fchown(handle, -1, gid)
    os.fchmod(handle, mode)  # after the group, whose change may take a part of it away


def of_state(state: State | None) -> tuple[str, ...] | None:
    """Return the jobs whose labels the machines of an active job may have; None if it is not active."""
    if state is None or (state.done and not state.requested):
        return None
    owners = state.previous_owners if state.requested else ()
    return tuple(sorted(str(labels.get("tpux-job", "")) for labels in owners))


class _ForeignError(Exception):
    """What was opened is not a file, or a directory, that the user has made."""


@contextmanager
def _opened(
    path: str | Path, flags: int, uid: int | None, above: int | None = None, *, links: int = 1 << 32
) -> Iterator[int]:
    """Open a regular file, or with `O_DIRECTORY` a directory, of a user, or of any; a link to it is not followed.

    Args:
        path: its path.
        flags: for `os.open`.
        uid: the user's number.
        above: a descriptor of the directory that the path is relative to.
        links: a file with more names is refused.

    Raises:
        _ForeignError: it is something else, or another user's.
        OSError: it cannot be opened.
    """
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK  # it may be a pipe that nobody writes
    try:
        handle = os.open(path, flags, 0o600, dir_fd=above)
    except OSError as error:
        if error.errno in _OTHER_KINDS:
            raise _ForeignError from error
        raise
    try:
        found = os.fstat(handle)
        is_kind = stat.S_ISDIR if flags & os.O_DIRECTORY else stat.S_ISREG
        is_linked = is_kind is stat.S_ISREG and found.st_nlink > links
        if not is_kind(found.st_mode) or uid not in {None, found.st_uid} or is_linked:
            raise _ForeignError
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _opened_below(directory: Path, name: str, flags: int, uid: int | None) -> Iterator[int]:
    """Open what a user has below a directory, as above; each directory on the way must be the user's, and no link."""
    with ExitStack() as stack:
        if uid is None:  # a store of one user, who may have put links there
            yield stack.enter_context(_opened(f"{directory}/{name}" + "/." * bool(flags), flags, None))
            return
        above = stack.enter_context(_opened(directory, os.O_DIRECTORY, uid))
        *parents, last = name.split("/")
        for part in parents:
            above = stack.enter_context(_opened(part, os.O_DIRECTORY, uid, above))
        yield stack.enter_context(_opened(last, flags, uid, above))


def _read(directory: Path, name: str, user: str, uid: int) -> File | None:
    """Return a user's file; None if there is none, or what is there is no regular file of that user."""
    path = directory / name
    try:
        with (
            _opened_below(directory, name, 0, uid if user else None) as handle,
            open(handle, "rb", closefd=False) as file,
        ):
            found = os.fstat(handle)
            if found.st_size > LARGEST:
                return None
            return File(name, user, uid == os.geteuid(), file.read(LARGEST), found.st_mtime)
    except (FileNotFoundError, _ForeignError):
        return None
    except PermissionError as error:
        raise _kept(user, path) from error


def _kept(user: str, path: Path) -> TpuxError:
    hint = f"whom it belongs to can type: chmod -R g+rX {path}"
    return TpuxError(f"{user or 'a user'} keeps from others what the store's users publish", where=str(path), hint=hint)


def _is_called(uid: int, name: str) -> bool:
    """Return whether an account has a name, or may have it: only one that is known to have another one forges it."""
    try:
        return env.account(uid) == name
    except KeyError:
        return True

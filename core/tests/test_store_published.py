"""What users of a shared store publish: whose it is decides, and only regular files of their owners are read."""

from __future__ import annotations

import errno
import json
import os
import pwd
import shutil
import socket
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tpux import env
from tpux.errors import TpuxError, UsageError
from tpux.model.events import Created, StateChanged, Waiting
from tpux.store import Store, files, leases
from tpux.store.published import Published, share
from tpux.store.record import Record

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make files of other users")
OTHER, UID = "daemon", 1
LEASE = {"tpux-store": "s", "tpux-user": "root", "tpux-job": leases.HOLD}


@pytest.fixture
def store(monkeypatch):
    """A shared store of which this process is one user, and `daemon` another one."""
    with TemporaryDirectory() as directory:  # others cannot reach pytest's
        Path(directory).chmod(0o755)
        share(Path(directory) / "store", "root")
        monkeypatch.setenv("TPUX_HOME", f"{directory}/store")
        monkeypatch.delenv("TPUX_USER", raising=False)
        yield Path(directory) / "store"


def test_a_directory_that_others_cannot_reach_or_that_has_files_is_not_shared(store):
    closed = store.parent / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UsageError, match="the group daemon cannot reach") as caught:
        share(closed / "store", OTHER)
    assert caught.value.hint == f"type: chmod o+x {closed}"
    with pytest.raises(UsageError, match="is not empty"):
        share(store.parent, "root")
    with pytest.raises(UsageError, match="has no group nobody-has"):
        share(store.parent / "new", "nobody-has")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, how) for name in ("", "users", "published", "lock", "tpux-shared.json") for how in ("link", "owner")),
        ("lock", "hard link"),
        ("tpux-shared.json", "hard link"),
    ],
)
def test_sharing_follows_no_link_and_takes_nothing_of_another_user(store, name, how):
    victim, new = store.parent / "victim", store.parent / "new"
    is_directory = name in {"", "users", "published"}
    victim.mkdir(mode=0o700) if is_directory else victim.touch(mode=0o600)
    (new if name else store.parent).mkdir(exist_ok=True)
    if how == "link":
        (new / name).symlink_to(victim)
    elif how == "hard link":
        (new / name).hardlink_to(victim)
    else:
        victim.rename(new / name)
        victim = new / name
        os.chown(victim, UID, UID)
    before = victim.stat()
    with pytest.raises(UsageError, match="another user may have made") as caught:
        share(new, "root")
    assert caught.value.where == str(new / name)
    found = victim.stat()
    assert (found.st_mode, found.st_uid, found.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


@pytest.mark.parametrize(
    ("mode", "uid", "gid"), [(0o777, 0, 0), (0o775, 0, UID), (0o755, UID, 0)], ids=["others", "group", "owner"]
)
def test_a_store_is_not_below_a_directory_whose_entries_another_user_can_replace(store, mode, uid, gid):
    parent = store.parent / "parent"
    parent.mkdir()
    os.chown(parent, uid, gid)
    parent.chmod(mode)
    (store.parent / "link").symlink_to(parent)
    for path in (parent, parent / "more", store.parent / "link"):
        with pytest.raises(UsageError, match="other users can replace") as caught:
            share(path / "new", "root")
        assert str(parent) in str(caught.value)
    os.chown(parent, 0, gid)
    parent.chmod(0o1777 if mode == 0o777 else 0o755)
    share(parent / "new", "root")


def plant(store: Path, name: str, content: str, *, uid: int = UID, user: str = OTHER) -> Path:
    """Write a file as another user."""
    path = store / "published" / user / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    for each in (path, *path.parents):
        if each.is_relative_to(store / "published" / user):
            os.chown(each, uid, -1)
    return path


def read(store: Path, name: str = "x") -> list[tuple[str, bytes]]:
    home = Store().home
    assert home == store / "users" / "root"
    return [(file.user, file.content) for file in Published(home, home).read(name)]


def test_files_of_all_users_are_read_with_whose_they_are(store):
    Published(Store().home, Store().home).write("x", b"mine")
    plant(store, "x", "theirs")
    assert read(store) == [("root", b"mine"), (OTHER, b"theirs")]
    found = {path.name: oct(path.stat().st_mode & 0o7777) for path in (store, *store.iterdir())}
    assert found == {
        "store": "0o2750",
        "users": "0o3770",
        "published": "0o3770",
        "lock": "0o660",
        "tpux-shared.json": "0o640",
    }
    modes = [
        oct((store / name).stat().st_mode & 0o777) for name in ("users/root", "published/root", "published/root/x")
    ]
    assert modes == ["0o700", "0o750", "0o640"]


def test_what_is_no_regular_file_of_its_user_is_not_read(store, tmp_path):
    path = plant(store, "x", "theirs", uid=2)
    os.chown(path.parent, UID, -1)
    assert read(store) == [], "a file that yet another user owns"
    path.unlink()
    (tmp_path / "secret").write_text("s")
    os.chown(tmp_path / "secret", UID, -1)
    path.symlink_to(tmp_path / "secret")
    assert read(store) == [], "a link"
    path.unlink()
    os.mkfifo(path)
    os.chown(path, UID, -1)
    assert read(store) == [], "a pipe, which nobody writes"
    path.unlink()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    os.chown(path, UID, -1)
    assert read(store) == [], "a socket"
    path.unlink()
    plant(store, "x", "y" * (1 << 21))
    assert read(store) == [], "a file that is too large"
    plant(store, "x", "forged", user="bin")
    plant(store, "x", "")
    assert read(store) == [(OTHER, b"")], "a directory with the name of another user"


def test_a_link_in_place_of_a_directory_is_not_followed(store):
    elsewhere = plant(store, "away/machines/x", "y").parent
    (store / "published" / OTHER / "machines").symlink_to(elsewhere)
    assert read(store, "machines/x") == []
    assert read(store, "away/machines/x") == [(OTHER, b"y")]
    home = Store().home
    assert Published(home, home).files("machines") == []
    assert [file.name for file in Published(home, home).files("away/machines")] == ["away/machines/x"]
    os.chown(elsewhere, 2, -1)
    assert read(store, "away/machines/x") == [], "a directory of yet another user"
    assert Published(home, home).files("away/machines") == []


def test_a_directory_that_vanishes_while_it_is_read_is_left_out(store, monkeypatch):
    plant(store, "x", "theirs").unlink()
    list_entries = os.scandir

    def vanish(path):
        entries = [*list_entries(path)]
        (store / "published" / OTHER).rmdir()
        return entries

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", vanish)
        assert read(store) == []


def test_a_directory_of_another_user_is_not_used(store):
    plant(store, "x", "", user="root")
    with pytest.raises(UsageError, match="is not a directory of root"):
        read(store)
    users = store / "users/root"
    users.rename(store / "users/away")
    users.symlink_to(store / "users/away")
    with pytest.raises(UsageError, match="is not a directory of root"):
        Store()


def test_a_user_whose_name_is_not_known_for_now_still_counts(store, monkeypatch):
    plant(store, "x", "theirs")
    plant(store, "x", "forged", user="bin")
    env.account.cache_clear()
    known = pwd.getpwuid

    def fail(uid: int):
        if uid == UID:
            raise KeyError(uid)
        return known(uid)

    with monkeypatch.context() as patch:
        patch.setattr(pwd, "getpwuid", fail)
        assert (OTHER, b"theirs") in read(store)
    assert read(store) == [(OTHER, b"theirs")], "nothing of that is remembered"


def test_a_process_without_a_name_is_told_so(store, monkeypatch):
    env.account.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
        with pytest.raises(UsageError, match="this account has no user name"):
            env.home()
    assert env.home() == store / "users/root"


@pytest.mark.parametrize("below", ["", "users/root"])
@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_store_is_that_of_one_user_only_if_that_is_known(store, monkeypatch, number, below):
    def fail(path, **options):
        if str(path).endswith(env.SHARED_MARK):
            raise OSError(number, os.strerror(number), str(path))
        return known(path, **options)

    known = os.stat
    is_none = number in {errno.ENOENT, errno.ENOTDIR} or (number == errno.EACCES and not below)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)
        with nullcontext() if is_none else pytest.raises(OSError, match=os.strerror(number)):
            assert env.shared_root(store / below) is None


def test_a_user_who_shares_a_store_is_the_login(store, monkeypatch):
    monkeypatch.setenv("TPUX_USER", OTHER)
    with pytest.raises(UsageError, match="must be your login name, root") as caught:
        Store()
    assert caught.value.hint == "unset TPUX_USER"
    monkeypatch.setenv("TPUX_USER", "root")
    monkeypatch.setenv("TPUX_HOME", str(Store().home))
    assert (Store().home, Store().root) == (store / "users/root", store), "as a supervisor is started"


def test_the_last_lease_counts_and_its_user_is_whose_file_it_is(store):
    name = leases._name("tpu")
    assert leases.hold(["tpu"], until=2e9) == {}
    assert leases.lease_of("tpu")["number"] == 1
    plant(store, name, json.dumps({**LEASE, "tpux-store": leases.store_id(), "number": 2, "until": 2e9}))
    assert leases.lease_of("tpu")["tpux-user"] == OTHER
    assert leases.hold(["tpu"], until=2e9) == {"tpu": leases.HOLD}
    assert not leases.end_hold(["tpu"])
    plant(store, name, json.dumps({**LEASE, "number": 2, "until": 1.0}))
    assert leases.lease_of("tpu")["tpux-user"] == "root", "that of another user has ended"
    assert leases.end_hold(["tpu"])
    assert leases.lease_of("tpu") == {}


@pytest.mark.parametrize(
    "planted",
    [{}, {"until": 1.0, **LEASE}, {**LEASE, "tpux-job": "000007"}, {**LEASE, "pending_on": "x", "token": "t"}],
    ids=["no owner", "ended", "of a job that is not active", "pending"],
)
def test_a_lease_that_does_not_count_voids_no_lease_of_another_user(store, planted):
    assert leases.hold(["tpu"], until=2e9) == {}
    plant(store, leases._name("tpu"), json.dumps({**planted, "number": 1000}))
    assert leases.lease_of("tpu")["tpux-user"] == "root"
    assert leases.holder_of("tpu") == leases.HOLD
    assert leases.hold(["tpu"], until=2e9, note="n") == {}
    assert leases.lease_of("tpu")["number"] == 1001, "should that job be resumed, its lease is not the last one"
    assert leases.end_hold(["tpu"])


def test_an_own_lease_is_written_again_if_it_is_not_the_last_one(store, monkeypatch):
    """Both jobs had ended without a release; the other user's is resumed second."""
    monkeypatch.setattr(leases, "_counts", lambda holder: holder == "000005")
    mine = {"tpux-store": leases.store_id(), "tpux-user": "root", "tpux-job": "000005"}
    assert leases.acquire_all(["tpu"], mine) == {}
    plant(store, leases._name("tpu"), json.dumps({**LEASE, "tpux-job": "000006", "number": 2}))
    assert leases.acquire_all(["tpu"], mine) == {}
    own = json.loads((store / "published" / "root" / leases._name("tpu")).read_text())
    assert own["number"] == 3, "job 6 is not the last one, should it become active again"


@pytest.mark.parametrize("number", [10**12 + 1, 10**4299])
def test_an_impossible_number_of_a_lease_is_refused_with_whose_it_is(store, number):
    path = plant(store, leases._name("tpu"), json.dumps({**LEASE, "number": number, "until": 1.0}))
    assert leases.lease_of("tpu") == {}
    with pytest.raises(TpuxError, match=f"{OTHER} has published an impossible number") as caught:
        leases.hold(["tpu"], until=2e9)
    assert caught.value.where == f"published/{OTHER}/{leases._name('tpu')}"
    path.unlink()
    assert leases.hold(["tpu"], until=2e9) == {}


def test_a_lease_that_is_released_while_it_is_read_is_none(store, monkeypatch):
    assert leases.hold(["tpu"], until=2e9) == {}
    read_files = Published.read

    def read_once(self, name):
        monkeypatch.setattr(Published, "read", lambda *_: [])
        return read_files(self, name)

    monkeypatch.setattr(Published, "read", read_once)
    assert leases.lease_of("tpu")["tpux-user"] == "root"


def test_a_job_of_another_user_is_active_as_long_as_that_is_published(store):
    lease = {**LEASE, "tpux-job": "000007", "number": 1}
    plant(store, leases._name("tpu"), json.dumps(lease))
    assert leases.holder_of("tpu") == ""
    plant(store, "active/000008", json.dumps({"previous": ["000007"]}))
    assert leases.holder_of("tpu") == "000007", "its machines may have the labels of that job"
    plant(store, "active/000008", "[1").rename(store / "published" / OTHER / "active/000007")
    assert leases.holder_of("tpu") == "000007"
    (store / "published" / OTHER / "active/000007").unlink()
    assert leases.holder_of("tpu") == ""


def test_ids_are_unique_over_all_users(store):
    plant(store, "next_id", "41\n")
    assert Store()._reserve_id() == "000041"
    for hostile in ("9" * 30, f"{10**18 - 1}\n", f"{10**12 + 1}\n"):
        path = plant(store, "next_id", hostile)
        with pytest.raises(TpuxError, match=f"{OTHER} has published an impossible number of a job") as caught:
            Store()._reserve_id()
        assert caught.value.where == f"published/{OTHER}/next_id"
    plant(store, "next_id", f"{10**12}\n")
    assert [Store()._reserve_id() for _ in range(2)] == [str(10**12), str(10**12 + 1)], "one's own always counts"
    path.unlink()
    assert Store()._reserve_id() == str(10**12 + 2)


def create() -> Record:
    content = {"secrets.json": (b"s", 0o600)}
    return Store().create(lambda job: (content, Created(id=job, user="root", name="n")), at=1.0)


def active(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "published/root/active").glob("*"))


def test_a_job_whose_creation_failed_is_not_active(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            create()
    assert active(store) == []
    assert not [*Store().jobs.rglob("secrets.json")]


def test_the_supervisor_removes_what_a_killed_creation_left(store, monkeypatch):
    before = create()
    with monkeypatch.context() as patch:  # as SIGKILL: nothing cleans up
        patch.setattr(files, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(Published, "remove", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            create()
    assert active(store) == ["000001", "000002"]
    Store().purge()
    assert active(store) == [before.id] == ["000001"]
    assert [path.parent.name for path in Store().jobs.rglob("secrets.json")] == ["000001"]


def test_a_state_that_could_not_be_published_is_published_with_the_next_event(store, monkeypatch):
    record = create()
    assert record.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(Published, "remove", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        record.write(StateChanged(to="failed"), 2.0)
    assert active(store) == ["000001"], "until then others wait"
    record.write(Waiting(why="x"), 3.0)
    assert active(store) == []

"""A store that three users of the machine share: real accounts, which are removed afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.test_gcp_e2e import TPUX, cloud, tpu_emulator
from tests.test_pool_e2e import make, pool
from tpux_emulator.emulator import Emulator

__all__ = ["cloud", "pool", "tpu_emulator"]
GROUP = "tpuxtest"
ANN, BOB, CY = USERS = ("tpuxann", "tpuxbob", "tpuxcy")
SECRET = "a-secret-of-"
READ = "import os, sys; handle = os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK); print(os.read(handle, 1))"
ENTER = """
set -e
if [ -n "$1" ]; then
    mount --bind "$2" "$3"
    mount -t tmpfs -o mode=755 tmpfs "$1"
    mkdir -p "$2"
    mount --bind "$3" "$2"
fi
cd "$4"
user=$5
shift 5
exec setpriv --reuid="$user" --regid=GROUP --init-groups -- "$@"
""".replace("GROUP", GROUP)
"""Runs a command as a user, who finds Python although it may be below a directory that is closed, such as /root."""
WRITE = "import os, sys; os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)"


def accounts(command: str, *names: str) -> None:
    for name in names:
        subprocess.run([command, name], check=False, capture_output=True)


class Shared:
    """A shared store, and what its users type."""

    def __init__(self, directory: Path, env: dict[str, str]) -> None:
        self.directory, self.store = directory, directory / "store"
        (directory / "python").mkdir()
        self.env = env

    def run(self, user: str, *command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user, in the user's own directory."""
        own = self.directory / user
        if not own.exists():
            own.mkdir()
            shutil.chown(own, user)
            own.chmod(0o700)
        places = {"HOME": str(own), "USER": user, "LOGNAME": user, "TPUX_HOME": str(self.store)}
        base = Path(sys.base_prefix).resolve()
        closed = [parent for parent in base.parents if not parent.stat().st_mode & stat.S_IXOTH]
        given = (closed[-1] if closed else "", base, self.directory / "python", own, user, *command)
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", ENTER, "sh", *map(str, given)],
            env={**self.env, **places, **env},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def tpux(self, user: str, *args: str | Path, code: int = 0, **env: str) -> str:
        """Type a command of tpux as a user; return what it prints."""
        done = self.run(user, TPUX, *args, **env)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def may(self, user: str, code: str, path: str | Path) -> bool:
        """Whether a user may open a path: to read it, or to write it."""
        return self.run(user, sys.executable, "-c", code, path).returncode == 0

    def find(self, user: str) -> dict[str, str]:
        """Return who uses which TPU, as a user sees it."""
        done = self.run(user, TPUX, "find", "--json")
        assert done.returncode == 0, done.stderr
        return {
            tpu["alias"]: f"{tpu['user']} {tpu['job'] or 'hold'}" if tpu["user"] else ""
            for tpu in json.loads(done.stdout)
        }

    def until(self, what: Callable[[], object]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + 100
        while not what():
            assert time.monotonic() < deadline, [self.run(user, TPUX, "show", "-").stdout for user in USERS]
            time.sleep(0.3)

    def plant(self, user: str, path: Path, content: str) -> None:
        """Write a file as a user."""
        done = self.run(user, "sh", "-c", 'mkdir -p "${1%/*}" && printf %s "$2" >"$1"', "sh", path, content)
        assert done.returncode == 0, done.stderr


def _skip(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def shared() -> Iterator[Shared]:
    """Three accounts of one group; without root, or where they cannot read this installation, the test is skipped."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may make users")
    if not all(map(shutil.which, ("useradd", "userdel", "groupadd", "groupdel", "setpriv", "unshare"))):
        _skip("useradd or setpriv is not installed")
    directory = Path(tempfile.mkdtemp(prefix="tpux-shared-"))
    directory.chmod(0o755)
    env = {key: value for key, value in os.environ.items() if not key.startswith("TPUX_")}
    one = Shared(directory, {**env, "NO_COLOR": "1"})
    accounts("userdel", *USERS), accounts("groupdel", GROUP)
    try:
        subprocess.run(["groupadd", GROUP], check=True)
        for user in USERS:
            command = ["useradd", "--gid", GROUP, "--no-create-home", "--comment", "of a test of tpux", user]
            subprocess.run(command, check=True)
        if one.run(ANN, sys.executable, "-c", "import tpux").returncode:
            pytest.skip("other users cannot read this installation")
        yield one
    finally:
        for user in USERS:
            one.run(user, TPUX, "supervisor", "stop")
            for process in Path("/proc").glob("[0-9]*"):  # of that user: the account is the test's
                with suppress(OSError, KeyError):
                    if process.owner() == user:
                        os.kill(int(process.name), signal.SIGKILL)
        accounts("userdel", *USERS), accounts("groupdel", GROUP)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_three_users_share_tpus_and_nothing_else(shared: Shared, pool: Emulator) -> None:
    make(pool, "one", "two")
    shared.env |= {"TPUX_GCP_ENDPOINT": pool.url, "CLOUDSDK_COMPUTE_ZONE": "us-central2-b"}
    done = subprocess.run([TPUX, "store", "share", shared.store, "--group", GROUP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"export TPUX_HOME={shared.store}" in done.stderr

    # TPUX_USER must be the login name.
    said = shared.tpux(BOB, "list", code=2, TPUX_USER=ANN)
    assert f"TPUX_USER must be your login name, {BOB}" in said
    assert "unset TPUX_USER" in said
    shared.tpux(BOB, "list", TPUX_USER=BOB)

    # Each registers a TPU of their own, and all see both; holds, leases and places in the queue are seen too.
    shared.tpux(ANN, "tpu", "register", "one", "--alias", "p1")
    shared.tpux(BOB, "tpu", "register", "two", "--alias", "p2")
    assert "p1 is one in us-central2-b already" in shared.tpux(BOB, "tpu", "register", "two", "--alias", "p1", code=2)
    assert f"{ANN} has registered one" in shared.tpux(BOB, "tpu", "unregister", "p1", code=2)
    shared.tpux(ANN, "hold", "p1", "--for", "1h", "--note", "profiling")
    assert f"p1 is held by {ANN} (profiling)" in shared.tpux(BOB, "hold", "p1", "--for", "1h", code=2)
    assert "you do not hold p1" in shared.tpux(BOB, "release", "p1", code=2)

    config = (
        "tpu: {{allocation_mode: pool, accelerator: v4-8}}\n"
        f"ssh: {{{{port: {pool.ssh_port}}}}}\njob: {{{{remote_user: worker}}}}\n"
        "command: {{cmd: 'while [ ! -e ~/done-{0} ]; do sleep 0.2; done', env: {{TOKEN: '${{env:TOKEN}}'}}}}\n"
    )
    for user in (BOB, CY):
        shared.plant(user, shared.directory / user / "train.yaml", config.format(user))
    shared.tpux(BOB, "create", "train.yaml", TOKEN=SECRET + BOB)
    shared.until(lambda: shared.find(ANN) == {"p1": f"{ANN} hold", "p2": f"{BOB} 000001"})
    shared.tpux(CY, "create", "train.yaml", TOKEN=SECRET + CY)
    shared.until(lambda: f"job 1 of {BOB}" in shared.tpux(CY, "show", "2"))
    assert f"held by {ANN} (profiling)" in shared.tpux(CY, "show", "2")
    assert shared.find(CY) == shared.find(BOB) == {"p1": f"{ANN} hold", "p2": f"{BOB} 000001"}
    shared.tpux(ANN, "release", "p1")
    shared.until(lambda: shared.find(ANN) == {"p1": f"{CY} 000002", "p2": f"{BOB} 000001"})
    shared.until(lambda: json.loads(shared.run(CY, TPUX, "show", "2", "--json").stdout)["state"] == "running")

    # Neither can change a job, or read anything but what is published; and that has no secret.
    for command in (["stop", "1"], ["delete", "1", "-y"], ["show", "1"], ["logs", "1"], ["exec", "1", "true"]):
        assert f"belongs to {BOB}" in shared.tpux(CY, *command, code=2)
    files = {path for path in shared.store.rglob("*") if not path.is_symlink()}
    secret = {path for path in files if path.is_file() and (SECRET + BOB).encode() in path.read_bytes()}
    assert any(path.name == "secrets.json" for path in secret)
    for path in files:
        owner = path.owner()
        if owner == BOB and not path.is_relative_to(shared.store / "published"):
            assert path.is_relative_to(shared.store / "users" / BOB), path
        other = CY if owner == BOB else BOB
        if path.is_file() and owner in {BOB, CY}:
            published = path.is_relative_to(shared.store / "published")
            assert shared.may(other, READ, path) is published, path
            assert not shared.may(other, WRITE, path), path
            assert not published or path not in secret, path
    assert not shared.may(CY, READ, shared.store / "users" / BOB)

    # A lease outlives the holder's supervisor, and ends with the job.
    shared.tpux(CY, "exec", "2", f"touch ~/done-{CY}")
    shared.until(lambda: shared.find(BOB) == {"p1": "", "p2": f"{BOB} 000001"})
    shared.tpux(BOB, "stop", "1", "--release")
    shared.until(lambda: shared.find(CY) == {"p1": "", "p2": ""})


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.system
def test_what_a_hostile_member_plants_is_not_read_and_runs_nowhere(shared: Shared, pool: Emulator) -> None:
    make(pool, "one")
    shared.env |= {"TPUX_GCP_ENDPOINT": pool.url, "CLOUDSDK_COMPUTE_ZONE": "us-central2-b"}
    share = [TPUX, "store", "share", shared.store, "--group", GROUP]
    for _ in range(2):  # repeated, it is the same store
        subprocess.run(share, check=True)
    known = (shared.store / "tpux-shared.json").read_text()
    published, homes = shared.store / "published", shared.store / "users"

    homes.chmod(0o750)
    assert f"jobs are stored in {shared.store}" in shared.tpux(ANN, "list", code=1)
    homes.chmod(0o3770)

    # A directory with another user's name: the other user's tpux does not use it, nobody reads it.
    for parent in (homes, published):
        shared.plant(CY, parent / BOB / "x", "")
        said = shared.tpux(BOB, "find", code=2)
        assert f"{parent / BOB} is not a directory of {BOB}" in said
        assert f"sudo rm -r {parent / BOB}" in said
        shared.run(CY, "rm", "-r", parent / BOB)
    (homes / BOB).rmdir()
    assert shared.run(CY, "ln", "-s", shared.directory / BOB, homes / BOB).returncode == 0
    assert "is not a directory of" in shared.tpux(BOB, "find", code=2)
    shared.run(CY, "rm", homes / BOB)
    shared.plant(
        CY,
        published / ANN / "pool/registered.json",
        json.dumps([dict.fromkeys(("name", "zone", "project", "alias"), "x")]),
    )
    assert "no TPU" in shared.tpux(BOB, "find")
    shared.run(CY, "rm", "-r", published / ANN)

    # Nothing that belongs to another user can be replaced.
    shared.tpux(ANN, "tpu", "register", "one", "--alias", "p1")
    for path in (homes / ANN, published / ANN, shared.store / "lock", shared.store / "tpux-shared.json", published):
        assert shared.run(CY, "mv", path, f"{path}.away").returncode != 0
    assert (shared.store / "tpux-shared.json").read_text() == known

    # A lease in bob's name, one that is no lease, a pipe, and a link to a file of ann's.
    shared.tpux(ANN, "hold", "p1", "--for", "1h")
    (lease,) = (published / ANN / "machines").glob("*.json")
    forged = {
        **json.loads(lease.read_text()),
        "number": 9,
        "tpux-user": BOB,
        "note": "\x1b[2J",
        "since": 1e300,
        "until": 1e300,
    }
    shared.plant(CY, published / CY / "machines" / lease.name, json.dumps(forged))
    (row,) = json.loads(shared.run(ANN, TPUX, "find", "--json").stdout)
    assert (row["user"], row["job"]) == (CY, None)
    shared.tpux(ANN, "find")
    assert "\x1b" not in shared.run(ANN, TPUX, "hold", "p1", "--for", "1h").stderr
    for content in (
        "[",
        "{}",
        "[" * 5000,
        '{"tpux-job": "hold"}',
        '{"tpux-job": "../../x", "number": 9}',
        '{"number": "x"}',
        '{"number": 1000}',
        '{"number": 1000, "tpux-job": "hold", "until": 1}',
    ):
        shared.plant(CY, published / CY / "machines" / lease.name, content)
        assert shared.find(ANN) == shared.find(BOB) == {"p1": f"{ANN} hold"}
    shared.plant(CY, published / CY / "machines" / lease.name, json.dumps({"number": int("9" * 4299)}))
    assert f"{CY} has published an impossible number" in shared.tpux(ANN, "hold", "p1", "--for", "1h", code=1)
    for name in ("pool/registered.json", "pool/queue/000007.json", "active/000007"):
        for content in (
            "[",
            "[1]",
            "[" * 5000,
            "{}",
            '[{"name": "../x", "zone": "z", "project": "p", "alias": "a;b"}]',
        ):
            shared.plant(CY, published / CY / name, content)
            shared.tpux(ANN, "find")
            shared.tpux(ANN, "list")
    for command in (["rm"], ["mkfifo"], ["rm"], ["ln", "-s", published / ANN / "machines" / lease.name]):
        assert shared.run(CY, *command, published / CY / "machines" / lease.name).returncode == 0
        assert shared.find(ANN) == {"p1": f"{ANN} hold"}
    assert shared.run(CY, "rm", "-r", published / CY / "machines").returncode == 0
    shared.plant(CY, published / CY / "next_id", str(10**18 - 1))
    shared.plant(ANN, shared.directory / ANN / "train.yaml", "command: {cmd: 'true'}\ntpu: {allocation_mode: local}\n")
    said = shared.tpux(ANN, "create", "train.yaml", code=1)
    assert f"{CY} has published an impossible number of a job" in said
    assert shared.run(CY, "rm", published / CY / "next_id").returncode == 0
    assert shared.run(CY, "chmod", "700", published / CY).returncode == 0
    assert f"{CY} keeps from others" in shared.tpux(ANN, "hold", "p1", "--for", "1h", code=1)


@pytest.mark.process
@pytest.mark.timeout(100)
def test_a_member_who_prepares_the_directory_gains_nothing_from_a_store_that_root_shares(shared: Shared) -> None:
    for name in ("users", "published", "lock"):
        planted, victim = shared.directory / f"by-{CY}-{name}", shared.directory / f"victim-{name}"
        victim.mkdir(mode=0o700) if name != "lock" else victim.touch(mode=0o600)
        planted.mkdir()
        planted.chmod(0o777)
        assert shared.run(CY, "ln", "-s", victim, planted / name).returncode == 0
        command = [TPUX, "store", "share", planted, "--group", GROUP]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "another user may have made it" in done.stderr) == (2, True), done.stderr
        assert (victim.stat().st_gid, victim.stat().st_mode & 0o077) == (0, 0)


@pytest.mark.process
def test_what_another_member_registers_does_not_decide_what_is_deleted(shared: Shared, pool: Emulator) -> None:
    shared.env |= {"TPUX_GCP_ENDPOINT": pool.url, "CLOUDSDK_COMPUTE_ZONE": "us-central2-b"}
    subprocess.run([TPUX, "store", "share", shared.store, "--group", GROUP], check=True)
    shared.tpux(CY, "list")
    planted = {"name": "victim", "zone": "us-central2-b", "project": "emulated", "alias": "mine"}
    shared.plant(CY, shared.store / "published" / CY / "pool/registered.json", json.dumps([planted]))
    said = shared.tpux(BOB, "reapply", "mine", "-y", code=2)
    assert f"{CY} has registered mine, not you: victim in us-central2-b of project emulated" in said
    assert "tpux reapply victim --zone us-central2-b --project emulated" in said
    assert "no TPU mine in us-central2-b" in shared.tpux(BOB, "reapply", "mine", "--zone", "us-central2-b", code=2)
    assert "no TPU victim in us-central2-b" in shared.tpux(CY, "reapply", "mine", "--zone", "us-central2-b", code=2)
    assert "no TPU mine in us-central2-a" in shared.tpux(CY, "reapply", "mine", "--zone", "us-central2-a", code=2)
    # A login is what counts in a shared store, whatever the shell says.
    make(pool, "own")
    other = {"USER": "somebody", "LOGNAME": "somebody"}
    shared.tpux(BOB, "tpu", "register", "own", **other)
    shared.tpux(BOB, "hold", "own", **other)
    assert "own in us-central2-b is READY" in shared.tpux(BOB, "reapply", "own", "-y", **other)
    shared.plant(CY, shared.store / "published" / CY / "active/000009", "{}")
    assert f"(1 active job of {CY}; only their owners can read them; tpux find says who uses what)" in shared.tpux(
        BOB, "list", "--all-users"
    )
    assert CY not in shared.tpux(BOB, "list")

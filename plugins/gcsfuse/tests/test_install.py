"""The installation of gcsfuse, with stand-ins for the programs that would change this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tpux_gcsfuse import scripts

LOCKED = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)"
TOOLS = ["sh", "mkdir", "date", "mktemp", "rm", "cat", "grep", "sleep", "env", "tail", "ln"]


@pytest.fixture
def bare(cluster, local_host):
    """A worker with few programs, none of which needs root: `calls` records what sudo would run."""
    (cluster.bin / "gcsfuse").unlink()
    for name in TOOLS:
        (cluster.bin / name).symlink_to(shutil.which(name) or "")
    cluster.program("id", "echo 1000")
    calls = cluster.bin / "calls"
    cluster.program("sudo", f'shift; echo "$@" >>{calls}; case $1 in env) exec "$@" ;; tee) cat >>{calls} ;; esac')
    cluster.program("lsb_release", "echo noble")
    cluster.program("curl", "exit 0")
    cluster.program("apt-get", "exit 0")
    host = local_host(PATH=str(cluster.bin))
    return lambda limit: host.run(f"set -e\n{scripts.install(limit).script}", timeout=60)


def test_from_googles_repository_with_a_key_of_its_own(cluster, bare):
    cluster.program("gcsfuse-new", "echo gcsfuse version 3")
    cluster.program("apt-get", f"case $* in *install*) ln -sf gcsfuse-new {cluster.bin}/gcsfuse ;; esac")
    done = bare(600)
    assert done.ok, done.text
    (source,) = [call for call in cluster.calls() if call.startswith("deb ")]
    assert source.startswith(
        "deb [signed-by=/usr/share/keyrings/tpux-gcsfuse.asc] https://packages.cloud.google.com/apt"
    )
    assert source.endswith(" gcsfuse-noble main")
    assert [call.partition("Lock")[2].partition(" ")[2] for call in cluster.calls() if "apt-get" in call] == [
        "update",
        "install gcsfuse fuse3",
    ]


def test_apt_locked_for_longer_than_the_limit(cluster, bare):
    translated = "E: Sperre /var/lib/dpkg/lock-frontend konnte nicht bekommen werden."
    cluster.program("apt-get", f"[ \"$LC_ALL\" = C ] && echo '{LOCKED}' || echo '{translated}'; exit 100")
    failed = bare(1)
    assert failed.code == 75
    assert failed.text.splitlines()[-1] == (
        "another program has held the lock of apt for 1 s: wait for it, or set gcsfuse.lock_timeout"
    )


def test_a_lock_that_is_released_in_time(cluster, bare):
    cluster.program("gcsfuse-new", "echo gcsfuse version 3")
    tries, install = cluster.bin / "tries", f"*install*) ln -sf gcsfuse-new {cluster.bin}/gcsfuse ;;"
    locked = f"echo x >>{tries}; [ $(grep -c x {tries}) -gt 1 ] || {{ echo '{LOCKED}'; exit 100; }}"
    cluster.program("apt-get", f"{locked}\ncase $* in {install} esac")
    assert bare(600).ok


def test_a_broken_repository_of_another_program_does_not_matter(cluster, bare):
    cluster.program("gcsfuse-new", "echo gcsfuse version 3")
    install = f"*install*) ln -sf gcsfuse-new {cluster.bin}/gcsfuse"
    cluster.program("apt-get", f"case $* in {install} ;; *) echo 'E: The repository is not signed'; exit 100 ;; esac")
    assert bare(600).ok


@pytest.mark.parametrize(
    ("program", "message"),
    [("sudo", "needs root or passwordless sudo"), ("apt-get", "this worker has no apt: install gcsfuse and fuse3")],
)
def test_where_it_cannot_be_installed(cluster, bare, program, message):
    path: Path = cluster.bin / program
    path.unlink()
    if program == "sudo":
        cluster.program("sudo", "exit 1")
    failed = bare(600)
    assert not failed.ok
    assert message in failed.text.splitlines()[-1]


def test_an_installed_gcsfuse_is_used(cluster, bare):
    cluster.program("gcsfuse", "exit 0")
    cluster.program("fusermount3", "exit 0")
    assert bare(600).ok
    assert cluster.calls() == []

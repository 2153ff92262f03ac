"""Locks between processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpux.store import files, locks
from tpux.store.locks import Lock


def test_a_released_lock_is_free_although_a_child_process_has_its_file_open(tmp_path: Path) -> None:
    """A child has it between fork and exec, so another thread that starts a process must not keep a lock held."""
    lock = Lock(tmp_path / "lock")
    assert lock.acquire()
    descriptor = lock.pass_on()
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor]) as child:
        lock.release()
        assert lock.acquire()
        child.communicate(b"\n")
    lock.release()


@pytest.mark.parametrize("options", ["rw,vers=3,nolock,addr=10.0.0.2", "rw,vers=3,local_lock=flock", "rw,localflock"])
def test_locks_that_other_machines_do_not_see_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    device = tmp_path.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    table = tmp_path / "mountinfo"
    table.write_text(
        f"36 35 0:1 / /proc rw - proc proc rw\n37 35 {number} / /home rw shared:1 - nfs nas:/home {options}\n"
    )
    monkeypatch.setattr(files, "MOUNTS", table)
    locks._option_without_effect.cache_clear()
    try:
        with pytest.raises(locks.UnusableLocksError, match="other machines do not see its locks"):
            locks.Lock(tmp_path / "lock").acquire()
        table.write_text(table.read_text().replace(options, "rw,vers=4.2,local_lock=none"))
        locks._option_without_effect.cache_clear()
        assert locks.Lock(tmp_path / "lock").acquire()
    finally:
        locks._option_without_effect.cache_clear()

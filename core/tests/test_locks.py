"""Locks between processes."""

import subprocess
import sys
from pathlib import Path

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

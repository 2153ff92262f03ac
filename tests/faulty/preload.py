"""Make system calls of tpux' processes fail, with the library of `preload.c`.

A test takes the fixture `faults` and adds rules at any time:

    eio = faults.fail("EIO", "read write", "*/events.jsonl", times=3, process="*tpux.supervisor*")
    tpux.until(lambda: eio.hits == 3)
    with faults.fail("EAGAIN", "fork"):
        ...
    faults.set_clocks(forward=-3600)
"""

from __future__ import annotations

import errno as errnos
import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CALLS = ("open", "read", "write", "sync", "rename", "unlink", "stat", "mkdir", "lock", "truncate", "fork", "thread")
CALLS += ("list",)
LAYOUT = struct.Struct("@5i108s384s")
RULES = 16
CLOCKS = struct.Struct("@3q")


class Rule:
    """Which calls fail, until `stop`. As a context manager it stops at the end of the block."""

    def __init__(self, faults: Faults, number: int) -> None:
        self._faults = faults
        self._at = number * LAYOUT.size

    @property
    def hits(self) -> int:
        """How many calls have failed."""
        return int(struct.unpack_from("@i", self._faults.map, self._at + 16)[0])

    @property
    def used_up(self) -> bool:
        """Whether `times` calls have failed."""
        return int(struct.unpack_from("@i", self._faults.map, self._at + 12)[0]) == 0

    def stop(self) -> None:
        """Let no more calls fail."""
        struct.pack_into("@i", self._faults.map, self._at, 0)

    def __enter__(self) -> Rule:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Faults:
    """The rules of all processes whose environment has `environment`.

    Args:
        directory: where the library is built and the rules are kept.
    """

    def __init__(self, directory: Path) -> None:
        rules = directory / "faults"
        rules.write_bytes(bytes(LAYOUT.size * RULES + CLOCKS.size))
        with rules.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        self.environment = {"TPUX_TEST_PRELOAD": str(build(directory)), "TPUX_TEST_FAULTS": str(rules)}
        self._used = 0

    def fail(self, error: str, calls: str, path: str = "*", *, times: int = -1, process: str = "*") -> Rule:
        """Let system calls fail from now on.

        Args:
            error: the error's name, such as EIO; NONE lets the call succeed without any effect.
            calls: which calls, of `CALLS`, separated by blanks.
            path: a pattern (fnmatch, * includes /) for the path, also of a call with a descriptor; for a rename the new
                path. Not used for fork and thread.
            times: how many calls fail, all processes together; all if negative.
            process: a pattern for the command line of the process, its arguments separated by blanks.
        """
        number, self._used = self._used, self._used + 1
        assert number < RULES, "no more rules"
        at = number * LAYOUT.size
        code = 0 if error == "NONE" else getattr(errnos, error)
        wanted = sum(1 << CALLS.index(call) for call in calls.split())
        LAYOUT.pack_into(self.map, at, 0, code, wanted, times, 0, process.encode(), path.encode())
        struct.pack_into("@i", self.map, at, 1)  # the rule is complete: use it
        return Rule(self, number)

    def set_clocks(self, *, forward: int = 0, suspended: int = 0, frozen: int = 0) -> None:
        """Change what the clocks of all processes show from now on; without arguments, they are right again.

        Args:
            forward: seconds by which the wall clock was set forward; negative: back.
            suspended: seconds that the machine has slept: the clocks that include a suspend have gone on.
            frozen: if not 0, the wall clock stands still at this number of seconds since the epoch.
        """
        CLOCKS.pack_into(self.map, LAYOUT.size * RULES, forward, suspended, frozen)

    def stop(self) -> None:
        """Stop all rules, and set the clocks right."""
        for number in range(self._used):
            Rule(self, number).stop()
        self.set_clocks()

    def install(self, env: dict[str, str]) -> None:
        """Load the library into all processes of tpux that are started with this environment."""
        env.update(self.environment)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "site"), env.get("PYTHONPATH")]))


def build(directory: Path) -> Path:
    """Compile the library, and skip the test where that is not possible."""
    library = directory / "preload.so"
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler")
    arguments = ["-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "preload.c"), "-ldl"]
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the library of faults cannot be compiled here: {done.stderr}")
    return library

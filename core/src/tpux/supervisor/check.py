"""Check in a new process (`python -m tpux.supervisor --check`) that the installation on the disk can drive the jobs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tpux.errors import TpuxError
from tpux.lifecycle.open import open_job
from tpux.plugin.calls import RunningCalls, tracked
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import selected_plugins
from tpux.store import Store
from tpux.supervisor.installation import load_core
from tpux.threads import later

TIMEOUT = 60
"""Real seconds after which the check ends itself, also in code that blocks."""
LONGEST = TIMEOUT + 5
"""Real seconds after which the system ends it, also in code that lets no other thread run."""


def check(store: Store, jobs: Sequence[str]) -> None:
    """Import core, and open jobs with the plugins that they select. Nothing is written.

    Args:
        store: the store of the jobs.
        jobs: the jobs' ids; one that was deleted meanwhile is left out.

    Raises:
        TpuxError: a job cannot be read, or a plugin cannot be used.
        Exception: core cannot be imported.
    """
    signal.alarm(LONGEST)
    calls: RunningCalls = {}
    with later(TIMEOUT, lambda: _end(calls)), tracked(calls):
        _check(store, jobs)


def _end(calls: RunningCalls) -> None:
    """End the process, and say what has not returned."""
    what = next(map(str, calls.copy().values()), "it has not ended")
    sys.stderr.write(f"{what} within {TIMEOUT} s\n")
    sys.stderr.flush()
    os._exit(1)


def _check(store: Store, jobs: Sequence[str]) -> None:
    load_core()
    plugins = Plugins()
    for record in map(store.record, jobs):
        if not record.directory.is_dir():
            continue
        try:
            for _ in record.events():
                pass
            record.refresh()
            opened = open_job(store, record, plugins)
            for name in selected_plugins(opened.job):
                opened.plugins.load(name)
        except TpuxError as error:
            raise TpuxError(error.message, where=f"job {int(record.id)}", hint=error.hint) from error


class RunningCheck:
    """A check in another process.

    Args:
        jobs: the ids of the jobs that it opens.
    """

    def __init__(self, jobs: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # a pipe that nobody reads would block it  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tpux.supervisor", "--check", *jobs],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            cwd="/",
            start_new_session=True,
        )

    def problem(self) -> str | None:
        """Return why the check failed; "" if it succeeded, None if it has not ended."""
        code = self._process.poll()
        if code is None:
            return None
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        self._output.close()
        if code == 0:
            return ""
        if code == -signal.SIGALRM:
            return f"it did not start within {LONGEST} s"
        places = re.findall(r'^  File "(.*)", line (\d+)', "\n".join(lines), flags=re.MULTILINE)
        where = "".join(f" ({file}:{line})" for file, line in places[-1:])
        return f"{lines[-1]}{where}" if lines else f"its check ended with exit code {code}"

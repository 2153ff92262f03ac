"""`tpux sync` of a change of one line in a repository of 2,000 files, to 64 workers that have the code already.

The workers are directories on this machine, beside them as many copies that rsync updates, all in parallel.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, at_most, until
from benchmarks.sandbox import running, temporary_sandbox

FILES = 2000
WORKERS = 64
ROUNDS = 3
CONFIG = """
code: {{dir: '{directory}'}}
tpu: {{accelerator: v4-512}}
command: {{cmd: exec sleep 1000}}
"""


def rows() -> list[Row]:
    """Measure the wall time of a sync, and of rsync on each copy."""
    with temporary_sandbox() as sandbox:
        project = _make_repository(sandbox.directory / "project")
        [record] = sandbox.create(sandbox.config(CONFIG.format(directory=project)), 1)
        sandbox.start()
        until(lambda: running(record), within=300, why="the job to run")
        syncs = [_timed_sync(project, number, lambda: sandbox.tpux("sync", record.id)) for number in range(ROUNDS)]
        row = at_most(
            f"tpux sync of one line of {FILES} files to {WORKERS} workers",
            median(syncs),
            2.0,
            unit="s",
            note=_rsync(project),
        )
        sandbox.tpux("delete", record.id, "-y")
        return [row]


def _make_repository(project: Path) -> Path:
    for number in range(FILES):
        path = project / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"VALUE = {number}\n" * 50)
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@example.com", "-C", str(project)]
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *command], check=True)
    return project


def _timed_sync(project: Path, number: int, sync: Callable[[], object]) -> float:
    (project / "package0/module0.py").write_text(f"VALUE = {-number}\n")
    began = time.monotonic()
    sync()
    return time.monotonic() - began


def _rsync(project: Path) -> str:
    """Return how long parallel rsync takes to update as many copies; a note where there is none."""
    if (rsync := shutil.which("rsync")) is None:
        return "rsync is not installed"
    copies = [project.parent / f"copy{number}" for number in range(WORKERS)]

    def update(copy: Path) -> None:
        subprocess.run([rsync, "--archive", "--delete", f"{project}/", f"{copy}/"], check=True)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(update, copies))
        times = [_timed_sync(project, -number, lambda: list(pool.map(update, copies))) for number in range(ROUNDS)]
    return f"rsync to as many directories: {median(times):.2f} s"

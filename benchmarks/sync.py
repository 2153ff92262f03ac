"""A change of one line in a repository of 2,000 files: `tpux sync` to 64 workers, and until the program prints it.

The workers are directories on this machine. Beside them are as many copies, which rsync and `git fetch` update in
parallel.
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
from benchmarks.sandbox import Sandbox, running, temporary_sandbox
from tpux.store.record import Record

FILES = 2000
WORKERS = 64
ROUNDS = 3
CONFIG = """
code: {{dir: '{directory}'}}
tpu: {{accelerator: {accelerator}}}
command: {{cmd: 'cat package0/module0.py; exec sleep 1000', grace_period: 1s}}
"""
GIT = ("git", "-c", "user.name=bench", "-c", "user.email=bench@example.com")


def rows() -> list[Row]:
    """Measure the wall time of a sync, of rsync and git on each copy, and from an edit to the new output."""
    with temporary_sandbox() as sandbox:
        project = _make_repository(sandbox.directory / "project")
        return [*_rows(sandbox, project, "v4-32", 4, 3.0), *_rows(sandbox, project, f"v4-{8 * WORKERS}", WORKERS, 6.0)]


def _rows(sandbox: Sandbox, project: Path, accelerator: str, workers: int, limit: float) -> list[Row]:
    text = CONFIG.format(directory=project, accelerator=accelerator)
    record = sandbox.submit(text)
    until(lambda: running(record), within=300, why="the job to run")
    found = []
    if workers == WORKERS:
        syncs = [_timed(project, number, lambda: sandbox.tpux("sync", record.id)) for number in range(ROUNDS)]
        title = f"`tpux sync` of one line of {FILES} files to {workers} workers"
        found.append(at_most(title, median(syncs), 2.0, unit=" s", note=f"{_rsync(project)}, {_git_fetch(project)}"))
    edits = [_timed(project, 100 + number, lambda: _edit(sandbox, record, workers)) for number in range(ROUNDS)]
    title = f"edit until the new line of all {workers} workers, with `tpux sync` and `tpux restart`"
    found.append(at_most(title, median(edits), limit, unit=" s"))
    sandbox.tpux("delete", record.id, "-y")
    sandbox.tpux("supervisor", "stop")
    return found


def _edit(sandbox: Sandbox, record: Record, workers: int) -> None:
    """Send the changed code and start it; wait until each worker has printed it."""
    attempt = record.logs / f"attempt-{record.refresh().attempt + 1}"
    logs = [attempt / f"command_worker_{index}.log" for index in range(workers)]
    sandbox.tpux("sync", record.id)
    sandbox.tpux("restart", record.id, "-y")
    until(lambda: all(log.exists() and log.stat().st_size for log in logs), within=60, why="new output", every=0.01)


def _make_repository(project: Path) -> Path:
    for number in range(FILES):
        path = project / f"package{number % 40}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"VALUE = {number}\n" * 50)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*GIT, "-C", project, *command], check=True)
    return project


def _timed(project: Path, number: int, send: Callable[[], object]) -> float:
    """Return the seconds that it takes to send a changed line."""
    (project / "package0/module0.py").write_text(f"VALUE = {-number}\n")
    began = time.monotonic()
    send()
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
        times = [_timed(project, -number, lambda: list(pool.map(update, copies))) for number in range(ROUNDS)]
    return f"rsync to as many directories {median(times):.2f} s"


def _git_fetch(project: Path) -> str:
    """Return how long it takes to commit a change, and to fetch and check it out in as many clones, in parallel."""
    clones = [project.parent / f"clone{number}" for number in range(WORKERS)]

    def clone(target: Path) -> None:
        subprocess.run(["git", "clone", "--quiet", project, target], check=True)

    def update(target: Path) -> None:
        for command in (["fetch", "--quiet"], ["reset", "--quiet", "--hard", "origin/HEAD"]):
            subprocess.run(["git", "-C", target, *command], check=True)

    def commit_and_update() -> None:
        subprocess.run([*GIT, "-C", project, "commit", "--quiet", "--all", "--message", "change"], check=True)
        list(pool.map(update, clones))

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(clone, clones))
        times = [_timed(project, 200 + number, commit_and_update) for number in range(ROUNDS)]
    return f"git commit and fetch in as many clones {median(times):.2f} s"

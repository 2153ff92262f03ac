"""The job's directory on a worker, when the code and what the program has written there meet."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tpux import Job, Put, Result, Steps, testing
from tpux_code import worker
from tpux_code.files import choose
from tpux_code.snapshots import Snapshots


@dataclass
class OneWorker:
    """A home directory on this machine, and the files that are sent to it."""

    home: Path
    tree: Path
    job: Job = field(default_factory=testing.job)

    @property
    def directory(self) -> Path:
        return self.home / worker.directory(self.job)

    def write(self, files: Mapping[str, str]) -> None:
        """Replace all the files of the code; a text `-> x` makes a link to x."""
        shutil.rmtree(self.tree, ignore_errors=True)
        for name, text in files.items():
            path = self.tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("-> "):
                path.symlink_to(text[3:])
            else:
                path.write_text(text)

    def install(self) -> str:
        """Send the code and install it; return the output, or "" if it succeeded."""
        self.home.mkdir(exist_ok=True)
        snapshot = Snapshots().make(self.tree, choose(self.tree, [], [])).id
        return self._run(worker.send(Snapshots(), snapshot)) or self._run(iter_of(worker.install(self.job, snapshot)))

    def _run(self, steps: Steps) -> str:
        step = next(steps, None)
        while step is not None:
            result = Result()
            if isinstance(step, Put):
                path = self.home / step.remote
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(step.source if isinstance(step.source, bytes) else Path(step.source).read_bytes())
            else:
                command = ["sh", "-c", f"set -e\n{step.script}"]
                done = subprocess.run(command, cwd=self.home, check=False, capture_output=True)
                result = Result(done.returncode, done.stdout)
                if not result.ok:
                    return (done.stdout + done.stderr).decode() or "failed"
            try:
                step = steps.send(result)
            except StopIteration:
                break
        return ""

    def files(self) -> dict[str, str]:
        return {str(p.relative_to(self.directory)): p.read_text() for p in self.directory.rglob("*") if p.is_file()}


def iter_of(step: object) -> Steps:
    yield step


@pytest.fixture
def one(tmp_path, home) -> OneWorker:
    return OneWorker(tmp_path / "worker", tmp_path / "tree")


def test_python_runs_the_new_code_after_an_edit_that_keeps_the_size(one):
    """Python has compiled the old code, and compares only the time and the size of its source."""
    for text in ("A = 1\n", "A = 2\n"):
        one.write({"module.py": text})
        assert one.install() == ""
        command = [sys.executable, "-c", "import module; print(module.A)"]
        done = subprocess.run(command, cwd=one.directory, check=True, capture_output=True, text=True, env={})
        assert done.stdout == text[-2:]
    assert list(one.directory.glob("__pycache__/*.pyc"))

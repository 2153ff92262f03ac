"""A git repository with one commit."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Repository:
    """A work tree."""

    path: Path

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com", "-c", "protocol.file.allow=always"]
        command = ["git", *identity, "-C", str(self.path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def write(self, name: str, content: str = "x\n") -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(content)

    def commit(self, message: str = "change") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")


def make_repository(path: Path) -> Repository:
    path.mkdir()
    made = Repository(path)
    made.git("init", "--quiet", "--initial-branch=main")
    made.write("train.py", "print(1)\n")
    made.write(".gitignore", "*.bin\n")
    made.commit()
    return made


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "project")


@pytest.fixture
def another(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "library")


@pytest.fixture
def third(tmp_path: Path) -> Repository:
    return make_repository(tmp_path / "data")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty $TPUX_HOME."""
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "tpux"))
    return tmp_path / "tpux"

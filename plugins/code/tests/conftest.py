"""A git repository with one commit."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
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


@pytest.fixture
def local_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git fetch submodules from paths."""
    for name, value in {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)


@pytest.fixture
def work_tree(repository: Repository, another: Repository, tmp_path: Path, local_urls: None) -> Repository:
    """Clone a repository that has a submodule beside it, into another directory, and commit something there."""
    repository.git("submodule", "--quiet", "add", str(another.path), "lib")
    repository.git("config", "--file", ".gitmodules", "submodule.lib.url", f"../{another.path.name}")
    repository.commit()
    (tmp_path / "elsewhere").mkdir()
    cloned = replace(repository, path=tmp_path / "elsewhere" / "clone")
    repository.git("clone", "--quiet", str(repository.path), str(cloned.path))
    cloned.write("train.py", "mine\n")
    cloned.commit()
    return cloned

"""Compare a job's snapshot with what it was taken from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpux_code import git
from tpux_code.files import choose, printable
from tpux_code.snapshots import Snapshots

if TYPE_CHECKING:
    from tpux import JsonValue

SHORT = 10
"""How many characters of a commit are shown."""


def changed_files(answer: Mapping[str, JsonValue], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Return the files of a directory that differ from its snapshot.

    Args:
        answer: the description of the snapshot.
        include: `code.include`.
        exclude: `code.exclude`.

    Raises:
        TpuxError: the directory is gone, the snapshot is damaged, or git failed.
    """
    directory = Path(str(answer["directory"]))
    files = choose(directory, include, exclude)
    return [printable(path) for path in Snapshots().changes(str(answer["snapshot"]), directory, files)]


def new_commit(answer: Mapping[str, JsonValue]) -> list[str]:
    """Return where the branch or tag of a repository is by now; [] if it has not moved, or is on a server.

    Args:
        answer: the description of the snapshot.
    """
    repo, ref = Path(str(answer["repo"])), str(answer["ref"])
    commit = git.commit_of(repo, ref) if repo.is_dir() else ""
    return [f"{ref} is at {commit[:SHORT]}"] if commit and commit != answer["commit"] else []

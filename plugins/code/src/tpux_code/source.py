"""Take a snapshot of what the section `code` names, and describe it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import Finding, TpuxError, UsageError
from tpux.api.text import format_size
from tpux_code import git
from tpux_code.changes import SHORT
from tpux_code.files import check_size, choose, excluded_by, lfs_pointers, lfs_pull, links_out, printable
from tpux_code.login import split_credentials
from tpux_code.section import CodeSection, expand_user
from tpux_code.snapshots import Snapshots

if TYPE_CHECKING:
    from tpux import JsonValue

PATHS_SHOWN = 5
"""How many paths of a kind are stored, for warnings."""
Answer = Mapping[str, "JsonValue"]
"""What `resolve` returns."""


def directory_of(given: str, previous: Answer | None) -> Path:
    """Return the directory of a path in a section; an unchanged relative one is that of the last snapshot.

    Args:
        given: the path; a relative one starts where the command was typed.
        previous: the description of the job's last snapshot.

    Raises:
        UsageError: the path is relative to a directory that was deleted.
    """
    if previous and previous.get("dir") == given:
        return Path(str(previous["directory"]))
    try:
        return expand_user(given).resolve()
    except FileNotFoundError as error:
        hint = "change to another one: cd"
        raise UsageError(f"code.dir: {given}: the current directory no longer exists", hint=hint) from error


def take_snapshot(section: CodeSection, previous: Answer | None = None, inside: str = "") -> dict[str, JsonValue]:
    """Store a snapshot of what a section names, and return its description.

    Args:
        section: the section.
        previous: the description of the job's last snapshot.
        inside: the directory of the section's repository that has the code.

    Raises:
        TpuxError: the files cannot be read or are too large, or git failed.
    """
    answer: dict[str, JsonValue]
    with ExitStack() as stack:
        if section.repo is not None:
            repo, kept = _repository(section.repo, previous)
            part = git.Part(inside, excluded_by(section.exclude).match_file)
            is_commit = section.commit is not None
            tree = stack.enter_context(git.checkout(repo, revision_of(section), is_commit=is_commit, part=part))
            directory = tree / inside
            answer = {**kept, "repo": split_credentials(repo)[0], "ref": revision_of(section)}
            if not directory.is_dir():
                raise TpuxError(f"{answer['ref']} of {answer['repo']} has no directory {inside}")
        else:
            directory = directory_of(section.dir or ".", previous)
            answer = {"dir": section.dir, "directory": _stored(directory)}
        files = choose(directory, section.include, section.exclude)
        size = check_size(directory, files, section.max_size)
        revision = git.revision(directory) if git.is_work_tree(directory) else git.Revision("", 0)
        snapshot = Snapshots().make(directory, files)
        pointers = lfs_pointers(directory, files)
        answer |= _named("links", links_out(directory, files)) | _named("pointers", pointers)
        if pointers and section.repo is None:
            answer["lfs_pull"] = printable(lfs_pull(directory, pointers))
    return {
        **answer,
        "commit": revision.commit,
        "uncommitted": revision.changes,
        "files": len(files),
        "size": size,
        "snapshot": snapshot.id,
        "taken": f"{datetime.now(UTC).astimezone():%Y-%m-%d %H:%M}",
        "section": digest_of(section),
        "shown": ["repo", "ref", "directory", "commit", "uncommitted", "files", "taken"],
    }


def _named(name: str, paths: Sequence[str]) -> dict[str, JsonValue]:
    """Return paths for a warning: the first ones, and how many more there are."""
    shown: list[JsonValue] = [printable(path) for path in paths[:PATHS_SHOWN]]
    more: dict[str, JsonValue] = {f"further_{name}": len(paths) - len(shown)} if len(paths) > len(shown) else {}
    return {name: shown, **more} if shown else {}


def _stored(directory: Path) -> str:
    """Return the path of a directory as it is stored with the job.

    Raises:
        TpuxError: it is not UTF-8, so it cannot be.
    """
    try:
        return os.fsencode(directory).decode()
    except UnicodeDecodeError:
        shown = os.fsencode(directory).decode(errors="backslashreplace")
        raise TpuxError("the path of the code's directory is not UTF-8", where=shown, hint="rename it") from None


def _repository(given: str, previous: Answer | None) -> tuple[str, dict[str, JsonValue]]:
    """Return the URL or absolute path of a repository, and by what a later sync finds the job's directory again."""
    if ":" in given.partition("/")[0] or Path(given).is_absolute():  # a URL, or git's `host:path`
        return given, {name: previous[name] for name in ("dir", "directory") if previous and name in previous}
    directory = str(directory_of(given, previous))
    return directory, {"dir": given, "directory": directory}


def revision_of(section: CodeSection) -> str:
    """Return what to fetch from the section's repository: a commit, or the full name of a ref."""
    if section.commit:
        return section.commit
    if section.pr:
        return f"refs/pull/{section.pr}/head"
    if section.tag:
        return f"refs/tags/{section.tag}"
    return f"refs/heads/{section.branch}" if section.branch else "HEAD"


def digest_of(section: CodeSection) -> str:
    """Return a digest of a section, by which a changed one is noticed; a password in it cannot be seen there."""
    return hashlib.sha256(section.model_dump_json().encode()).hexdigest()[:16]


def describe_paths(answer: Answer, name: str) -> str:
    """Return the stored paths of one kind, such as "links", and how many more there are; "" if there are none."""
    paths = answer.get(name)
    more = f" and {answer[f'further_{name}']} more" if f"further_{name}" in answer else ""
    return f"{', '.join(map(str, paths))}{more}" if isinstance(paths, list) else ""


def lfs_findings(answer: Answer) -> list[Finding]:
    """Warn about pointers of Git LFS, and say how to get the files."""
    if not (pointers := describe_paths(answer, "pointers")):
        return []
    get = "put the files themselves there"
    if "repo" in answer:
        get = "install git-lfs on this machine, and type `git lfs install` once"
    elif answer.get("lfs_pull"):
        get = f"fetch them: {answer['lfs_pull']}"
    hint = f"{get}; then take the code again (tpux sync); or add the files to code.exclude"
    return [Finding("warning", f"the workers get pointers of Git LFS instead of the files: {pointers}", "code", hint)]


def describe(answer: Answer) -> str:
    """Return in one line what a snapshot has: where it comes from, commit, uncommitted changes and size."""
    commit, changes = str(answer["commit"])[:SHORT], answer["uncommitted"]
    where = f"{answer['repo']} {answer['ref']}" if "repo" in answer else str(answer["directory"])
    state = f" at {commit}" if commit else ""
    if changes:
        state += f" with {changes} uncommitted change{'s' if changes != 1 else ''}"
    files = f"{answer['files']} file" + ("" if answer["files"] == 1 else "s")
    return f"{where}{state}: {files}, {format_size(int(str(answer['size'])))}"

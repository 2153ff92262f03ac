"""Choose the files of a directory that are copied to the workers."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pathspec import GitIgnoreSpec

from tpux import TpuxError, api
from tpux.api.text import format_size
from tpux_code import git

NEVER = (".git", "__pycache__", ".venv")
"""Names that are left out everywhere, also where no git work tree says what to ignore."""
NAMED = 5
"""How many of the largest files a message names."""
_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_POINTER_SIZE = 1024
"""The largest size of a pointer of Git LFS, as its specification has it."""


def printable(path: str) -> str:
    """Return a path as text, whatever its bytes are."""
    return os.fsencode(path).decode(errors="backslashreplace")


def excluded_by(patterns: Sequence[str]) -> GitIgnoreSpec:
    """Return what matches the paths that are not copied: those of `exclude`, and those that never are."""
    return GitIgnoreSpec.from_lines([*NEVER, *patterns])


def choose(directory: Path, include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Return the files to copy, relative to the directory, sorted: regular files and symbolic links.

    Of a git work tree: the tracked files, those that are untracked and not ignored, those of its submodules, and the
    ignored ones that `include` matches. Of any other directory: all. Without those that `exclude` matches, and without
    the store of tpux, which has keys and secrets.

    Raises:
        TpuxError: the directory does not exist or is in the store, git failed, or a submodule is not checked out.
    """
    if not directory.is_dir():
        raise TpuxError(f"there is no directory {directory}", where="code.dir")
    work_tree = git.is_work_tree(directory)
    excluded, real, store = excluded_by(exclude), directory.resolve(), api.home().resolve()
    found = set(_of_work_tree(directory, excluded) if work_tree else _walk(directory, excluded))
    if include and work_tree:
        found.update(GitIgnoreSpec.from_lines(include).match_files(git.ignored_files(directory)))
    if real.is_relative_to(store):
        hint = "move the code elsewhere, or let TPUX_HOME be a directory of its own"
        raise TpuxError(f"{directory} is in the store of tpux, {store}", where="code.dir", hint=hint)
    if store.is_relative_to(real):
        inside = f"{store.relative_to(real)}/"
        found = {path for path in found if not path.startswith(inside)}
    return sorted(path for path in found if not excluded.match_file(path) and _is_copied(f"{directory}/{path}"))


def check_size(directory: Path, files: Iterable[str], limit: int) -> int:
    """Return the total size of the files in bytes.

    Raises:
        TpuxError: it exceeds the limit; the error names the largest files.
    """
    sizes = {path: status.st_size for path in files if (status := status_of(f"{directory}/{path}"))}
    total = sum(sizes.values())
    if total > limit:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:NAMED]
        shown = ", ".join(f"{path} ({format_size(sizes[path])})" for path in largest)
        raise TpuxError(
            f"the code has {format_size(total)}, and code.max_size is {format_size(limit)}; the largest files: {shown}",
            where=str(directory),
            hint="add what the program does not need to .gitignore or code.exclude, or set code.max_size",
        )
    return total


def links_out(directory: Path, files: Sequence[str]) -> list[str]:
    """Return the symbolic links whose target is not copied: on a worker they point to what is there, or to nothing."""
    copied = set(files)
    found = []
    for path in files:
        status = status_of(f"{directory}/{path}")
        if status is not None and stat.S_ISLNK(status.st_mode):
            target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(directory / path)))  # noqa: PTH115, PTH118, PTH120  (text, of paths that need not exist)
            if target != "." and target not in copied and not any(other.startswith(f"{target}/") for other in copied):
                found.append(path)
    return found


def lfs_pointers(directory: Path, files: Iterable[str]) -> list[str]:
    """Return the files that are pointers of Git LFS: git-lfs has not fetched the files that belong there."""
    return [path for path in files if _is_lfs_pointer(f"{directory}/{path}")]


def _is_lfs_pointer(path: str) -> bool:
    status = status_of(path)
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_size > _POINTER_SIZE:
        return False
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (as in `status_of`)
            content = file.read(_POINTER_SIZE)
    except OSError:  # the snapshot reports it
        return False
    return content.startswith(_POINTER) and b"\noid " in content


def lfs_pull(directory: Path, pointers: Iterable[str]) -> str:
    """Return the command that fetches the files of pointers of Git LFS; "" if they are in no git work tree."""
    parents = [(directory / path).parent for path in pointers]
    tops = [next((each for each in [start, *start.parents] if (each / ".git").exists()), None) for start in parents]
    return " && ".join(f"git -C {shlex.quote(str(top))} lfs pull" for top in dict.fromkeys(tops) if top)


def _of_work_tree(directory: Path, excluded: GitIgnoreSpec, inside: str = "") -> Iterator[str]:
    files, submodules = git.list_files(directory)
    yield from files
    for name in submodules:
        if excluded.match_file(f"{inside}{name}/"):
            continue
        if not (directory / name / ".git").exists():
            update = f"git -C {directory} submodule update --init --recursive"
            hint = f"{update}, or exclude it: code.exclude: [/{inside}{name}]"
            raise TpuxError(f"the submodule {name} is not checked out", where=str(directory), hint=hint)
        for path in _of_work_tree(directory / name, excluded, f"{inside}{name}/"):
            yield f"{name}/{path}"


def _walk(directory: Path, excluded: GitIgnoreSpec) -> Iterator[str]:
    def fail(error: OSError) -> None:
        path = Path(error.filename)
        if not isinstance(error, FileNotFoundError) and not excluded.match_file(f"{path.relative_to(directory)}/"):
            hint = "repair it, or add it to code.exclude"
            raise TpuxError(f"a directory cannot be read: {error.strerror}", where=str(path), hint=hint)

    for root, directories, names in os.walk(directory, onerror=fail):
        directories[:] = [name for name in directories if name not in NEVER]
        links = [name for name in directories if Path(root, name).is_symlink()]
        for name in [*names, *links]:
            yield str(Path(root, name).relative_to(directory))


def _is_copied(path: str) -> bool:
    status = status_of(path)
    return status is not None and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode))


def status_of(path: str) -> os.stat_result | None:
    """Return the status of a file or link; None if it does not exist, or no longer: editors have files for a moment.

    Without `Path`, since it is called for thousands of files at each `tpux sync`.

    Raises:
        TpuxError: that is unknown.
    """
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"a file cannot be read: {error.strerror}"
        raise TpuxError(message, where=path, hint="repair it, or add it to code.exclude") from error

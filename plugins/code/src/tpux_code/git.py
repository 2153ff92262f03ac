"""Run git on this machine: which files a work tree has, its commit, and clones."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tpux import TpuxError
from tpux_code.login import options_of, split_credentials

TIMEOUT = 120.0
"""Seconds that git may take on this machine."""
FETCH_TIMEOUT = 900.0
"""Seconds that it may take to get a repository."""
SUBMODULE = "160000"
"""The mode of a submodule in git's index."""
_HASH_LENGTHS = (40, 64)
"""How many digits a commit has: SHA-1 and SHA-256."""
# No prompt: nobody may be there to answer it. LC_ALL, so that messages are the same everywhere.
_ENVIRONMENT = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true", "LC_ALL": "C.UTF-8"}
_SSH = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
# git sets them for its hooks, and users for a repository of their settings: a clone would change that one.
_OF_ANOTHER_REPOSITORY = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE"),
)


@dataclass(frozen=True)
class Revision:
    """What a work tree has checked out.

    Attributes:
        commit: the commit; "" before the first.
        changes: how many files differ from the commit, untracked ones included.
    """

    commit: str
    changes: int


def is_work_tree(directory: Path) -> bool:
    """Return whether a directory is in a git work tree; needs no git."""
    return any((parent / ".git").exists() for parent in [directory, *directory.parents])


def place_in_work_tree(directory: Path) -> tuple[Path, str]:
    """Return the top of a directory's work tree, and the directory relative to it: "" if it is the top.

    Raises:
        TpuxError: git failed.
    """
    found = _run(["git", "-C", str(directory), "rev-parse", "--show-toplevel", "--show-prefix"])
    top, _, inside = found.partition("\n")
    return Path(top), inside.strip("/\n")


def list_files(directory: Path) -> tuple[list[str], list[str]]:
    """Return the tracked files and those that are untracked and not ignored, and the submodules.

    Both are paths relative to the directory; files that were deleted are left out.

    Raises:
        TpuxError: git failed.
    """
    tracked = _output(directory, "ls-files", "--stage", "-z")
    entries = [entry.partition("\t") for entry in tracked]
    others = _output(directory, "ls-files", "--others", "--exclude-standard", "-z")
    files = [path for facts, _, path in entries if not facts.startswith(SUBMODULE)]
    found = list(dict.fromkeys([*files, *others]))
    # An untracked directory with a repository of its own is listed as `name/`.
    nested = [path.rstrip("/") for path in found if path.endswith("/")]
    submodules = [path for facts, _, path in entries if facts.startswith(SUBMODULE)]
    return [path for path in found if not path.endswith("/")], [*dict.fromkeys([*submodules, *nested])]


def ignored_files(directory: Path) -> list[str]:
    """Return the files that git ignores, relative to the directory."""
    return _output(directory, "ls-files", "--others", "--ignored", "--exclude-standard", "-z")


def revision(directory: Path) -> Revision:
    """Return the commit of a work tree and whether it was changed.

    Raises:
        TpuxError: git failed.
    """
    head = _run(["git", "-C", str(directory), "rev-parse", "--verify", "--quiet", "HEAD"], may_fail=True)
    changes = _output(directory, "status", "--porcelain", "--no-renames", "--untracked-files=all", "-z", "--", ".")
    return Revision(head.strip(), len(changes))


def commit_of(repo: Path, ref: str) -> str:
    """Return the commit of a ref in a repository on this machine; "" if it has none of this name."""
    return _run(
        ["git", "-C", str(repo), "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"], may_fail=True
    ).strip()


@dataclass(frozen=True)
class Part:
    """The part of a repository whose submodules are wanted.

    Attributes:
        inside: a directory of the repository; "" for all of it.
        is_excluded: returns whether a path below it is not wanted; the path of a directory ends with a slash.
    """

    inside: str = ""
    is_excluded: Callable[[str], bool] = lambda _: False

    def name_of(self, submodule: str) -> str:
        """Return the path of a submodule relative to `inside`, or to the repository if it contains `inside`.

        Returns:
            The path; "" if the submodule is not wanted.
        """
        if not self.inside or f"{self.inside}/".startswith(f"{submodule}/"):
            name = submodule
        elif submodule.startswith(f"{self.inside}/"):
            name = submodule.removeprefix(f"{self.inside}/")
        else:
            return ""
        return "" if self.is_excluded(f"{name}/") else name


@contextmanager
def checkout(repo: str, revision: str, *, is_commit: bool, part: Part | None = None) -> Iterator[Path]:
    """Clone a repository into a temporary directory and check a revision out, with the submodules that are wanted.

    Args:
        repo: its URL or path. A user or password in it, or in the URL of its origin, is passed to git in a file.
        revision: the full name of a ref, or a commit.
        is_commit: it is the hash of a commit, or the beginning of one.
        part: which submodules are wanted; None for all.

    Yields:
        The work tree, which is deleted afterwards.

    Raises:
        TpuxError: git failed, such as for want of a login.
    """
    url, _ = split_credentials(repo)
    origin, login = split_credentials(_origin_of(repo))
    with tempfile.TemporaryDirectory(prefix="tpux-code-") as temporary:
        tree = Path(temporary, "tree")
        _run(["git", "init", "--quiet", str(tree)])
        # From its URL follow a submodule's relative one, and where git-lfs, if it is installed, finds the files.
        _run(["git", "-C", str(tree), "remote", "add", "origin", origin])
        if origin != url:  # the origin need not have what this machine has not pushed
            _run(["git", "-C", str(tree), "remote", "add", "local", url])
            _run(["git", "-C", str(tree), "config", "lfs.remote.searchall", "true"])
        options = options_of(login, Path(temporary)) if login else []
        commit = _fetch_commit(tree, url, revision, options) if is_commit else _fetch(tree, url, revision, options)
        try:
            _run(["git", *options, "-C", str(tree), "checkout", "--quiet", "--detach", commit], timeout=FETCH_TIMEOUT)
        except TpuxError as error:
            error.message = error.message.replace(f"{tree}/", "")
            raise _explained(error, url, revision) from error
        _update_submodules(tree, tree, url, options, part or Part())
        yield tree


def _origin_of(repo: str) -> str:
    """Return where a repository's submodules and files in Git LFS are: its origin if it is a local work tree."""
    if not (Path(repo) / ".git").exists():
        return repo
    origin = _run(["git", "-C", repo, "remote", "get-url", "origin"], may_fail=True).rstrip("\n")
    if not origin or ":" in origin.partition("/")[0]:  # a URL, or git's `host:path`
        return origin or repo
    return os.path.normpath(Path(repo, origin))


def _update_submodules(top: Path, tree: Path, url: str, options: Sequence[str], part: Part) -> None:
    """Fetch the submodules that are wanted of a work tree, and theirs.

    Args:
        top: the work tree of the repository.
        tree: the work tree: that one, or a submodule's.
        url: the repository, for messages.
        options: git's options for a login.
        part: which submodules are wanted.

    Raises:
        TpuxError: one of them cannot be fetched, or git skips it.
    """
    for entry in _output(tree, "ls-files", "--stage", "-z"):
        facts, _, path = entry.partition("\t")
        if facts.startswith(SUBMODULE) and (name := part.name_of(str((tree / path).relative_to(top)))):
            command = ["git", *options, "-C", str(tree), "submodule", "update", "--quiet", "--init"]
            try:
                _run_shallow(command, "--", path)
            except TpuxError as error:
                message = f"the submodule {name} cannot be fetched: {error.message.replace(f'{top}/', '')}"
                hint = f"if the program does not need it, leave it out: code.exclude: [/{name}]"
                if _needs_login(message):
                    hint = f"its repository needs a login, and tpux does not ask for one; {hint}"
                raise TpuxError(message, where=f"code.repo {url}", hint=hint) from error
            if not (tree / path / ".git").exists():  # git has skipped it, and would find the repository around it
                hint = f"let .gitmodules say that git fetches it (`update`), or exclude it: code.exclude: [/{name}]"
                raise TpuxError(f"the submodule {name} is not checked out", where=f"code.repo {url}", hint=hint)
            _update_submodules(top, tree / path, url, options, part)


def _run_shallow(command: Sequence[str], *arguments: str) -> None:
    """Run a git command that fetches: without the history, or with it from a server that only serves files.

    Args:
        command: git, its options and the command.
        arguments: what follows its options.
    """
    try:
        _run([*command, "--depth", "1", *arguments], timeout=FETCH_TIMEOUT)
    except TpuxError as error:
        if "does not support shallow" not in error.message:
            raise
        _run([*command, *arguments], timeout=FETCH_TIMEOUT)


def _fetch(tree: Path, url: str, ref: str, options: Sequence[str], *, history: bool = False) -> str:
    """Fetch a ref, with its history if that is wanted, and return the name of what was fetched.

    Args:
        tree: the local repository.
        url: of the remote one.
        ref: what is fetched: a branch, a tag or a commit.
        options: of git itself, such as the credentials.
        history: whether all commits before it are needed.
    """
    command = ["git", *options, "-C", str(tree), "fetch", "--quiet", "--no-tags"]
    try:
        if history:
            _run([*command, "--", url, ref], timeout=FETCH_TIMEOUT)
        else:
            _run_shallow(command, "--", url, ref)
    except TpuxError as error:
        raise _explained(error, url, ref) from error
    return "FETCH_HEAD"


def _fetch_commit(tree: Path, url: str, commit: str, options: Sequence[str]) -> str:
    """Fetch a commit, and return its full hash.

    A server need not send a commit by its hash, and sends none by the beginning of it: then all refs are fetched.

    Args:
        tree: the local repository.
        url: of the remote one.
        commit: its hash, or the beginning of it.
        options: of git itself, such as the credentials.
    """
    is_whole = len(commit) in _HASH_LENGTHS
    if is_whole:
        try:
            return _fetch(tree, url, commit, options)
        except TpuxError as error:
            if not (_lacks_revision(error.message) or "Cannot obtain needed object" in error.message):
                raise
    _fetch(tree, url, "+refs/*:refs/remotes/origin/*", options, history=True)
    name = ["rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    if found := _run(["git", "-C", str(tree), *name], may_fail=True).strip():
        return found
    several = "" if is_whole else ", or several that begin with it"
    raise TpuxError(f"the repository has no commit {commit}{several}", where=f"code.repo {url}")


def _lacks_revision(message: str) -> bool:
    return any(words in message for words in ("couldn't find remote ref", "not our ref", "unadvertised object"))


def _needs_login(message: str) -> bool:
    refusals = ("could not read Username", "Authentication failed", "Permission denied", "could not read Password")
    return any(words in message for words in refusals)


def _explained(error: TpuxError, url: str, ref: str) -> TpuxError:
    """Return the error of a fetch with what to do."""
    hint = f"git ls-remote {shlex.quote(url)} shows what git finds there"
    message = error.message
    if _needs_login(message):
        hint = (
            f"the repository needs a login, and tpux does not ask for one: `git ls-remote {shlex.quote(url)}` must work"
            " without a prompt (an SSH key, or a credential helper)"
        )
    elif "filter lfs failed" in message:
        hint = "GIT_LFS_SKIP_SMUDGE=1 in the environment of tpux takes the pointers of Git LFS instead of the files"
    elif _lacks_revision(message):
        message = f"the repository has no {ref}: {message}"
    return TpuxError(message, where=f"code.repo {url}", hint=hint)


def _output(directory: Path, *arguments: str) -> list[str]:
    """Return a git command's output, which ends each item with a null character.

    It is written to a file, since invoke would decode it.
    """
    with tempfile.NamedTemporaryFile(prefix="tpux-code-") as file:
        _run(["git", "-C", str(directory), *arguments], output=file.name)
        return [os.fsdecode(item) for item in Path(file.name).read_bytes().split(b"\0") if item]


def _run(command: Sequence[str], *, output: str = "", may_fail: bool = False, timeout: float = TIMEOUT) -> str:
    """Run a program and return its output.

    Args:
        command: the program and its arguments.
        output: the file for its output; it is not returned then.
        may_fail: return "" if it fails.
        timeout: seconds.

    Raises:
        TpuxError: it is not installed, failed, or took too long.
    """
    from invoke.context import Context
    from invoke.exceptions import CommandTimedOut

    line = shlex.join(command) + (f" >{shlex.quote(output)}" if output else "")
    given = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    environment = {**given, **_ENVIRONMENT, **({} if "GIT_SSH_COMMAND" in given or "GIT_SSH" in given else _SSH)}
    options = {"hide": True, "in_stream": False, "warn": True, "encoding": "utf-8", "timeout": timeout}
    try:
        done = Context().run(line, env=environment, replace_env=True, **options)
    except CommandTimedOut as error:
        raise TpuxError(f"git took longer than {timeout:.0f} s", where=_shown(command)) from error
    if done is not None and done.ok:
        return str(done.stdout)
    if may_fail:
        return ""
    lines = [] if done is None else [each for each in done.stderr.strip().splitlines() if each.strip()]
    if done is not None and done.return_code == 127:  # the shell's, of an unknown program
        raise TpuxError("git is not installed on this machine", hint="install it, for example: apt install git")
    raise TpuxError(f"git failed: {' '.join(lines[-4:]) or 'no message'}", where=_shown(command))


def _shown(command: Sequence[str]) -> str:
    """Return a command for a message, without its options: they name temporary files."""
    words = [word for word in command if not word.startswith("include.path=") and word != "-c"]
    return shlex.join(words)

"""Clones of repositories: the revision that was asked for, or an error that names it; submodules and LFS."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tpux import TpuxError
from tpux_code.files import choose
from tpux_code.git import checkout
from tpux_code.section import CodeSection
from tpux_code.snapshots import Snapshots
from tpux_code.source import take_snapshot

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 8\n"


@pytest.fixture
def commits(repository) -> list[str]:
    """Make three commits on `main`, and a branch whose name comes before it."""
    found = []
    for content in ("old", "middle", "new"):
        repository.write("train.py", content)
        found.append(repository.commit())
    repository.git("checkout", "--quiet", "-b", "experiment")
    repository.write("train.py", "experiment")
    repository.commit()
    return found


@pytest.mark.parametrize("length", [7, 12, 40])
def test_a_commit_that_no_branch_ends_with_is_checked_out(repository, commits, home, length):
    repository.git("branch", commits[1][:length], "main")  # named like the commit, which it does not have
    section = CodeSection(repo=str(repository.path), commit=commits[1][:length])
    assert take_snapshot(section)["commit"] == commits[1]


@pytest.mark.parametrize("commit", ["0123456", "0123456789" * 4])
def test_a_commit_that_the_repository_does_not_have(repository, commits, home, commit):
    with pytest.raises(TpuxError, match=f"the repository has no commit {commit}") as caught:
        take_snapshot(CodeSection(repo=str(repository.path), commit=commit))
    assert caught.value.where == f"code.repo {repository.path}"


def test_variables_that_name_another_repository_have_no_effect(repository, another, monkeypatch):
    """git sets them for its hooks, and users for a repository of their settings."""
    another.write("library.py")
    another.commit()
    (another.path / "library.py").unlink()
    branch, status = another.git("symbolic-ref", "HEAD"), another.git("status", "--porcelain")
    with monkeypatch.context() as patched:
        patched.setenv("GIT_DIR", str(another.path / ".git"))
        patched.setenv("GIT_WORK_TREE", str(another.path))
        patched.setenv("GIT_INDEX_FILE", str(another.path / ".git/index"))
        assert choose(repository.path, [], []) == [".gitignore", "train.py"]
        with checkout(str(repository.path), "HEAD", is_commit=False) as tree:
            assert sorted(path.name for path in tree.iterdir()) == [".git", ".gitignore", "train.py"]
    assert (another.git("symbolic-ref", "HEAD"), another.git("status", "--porcelain")) == (branch, status)


def test_a_link_whose_name_is_not_utf_8_is_named(repository):
    (repository.path / os.fsdecode(b"l\xff")).symlink_to("/nowhere")
    assert take_snapshot(CodeSection(dir=str(repository.path)))["links"] == ["l\\xff"]


def test_a_directory_whose_name_is_not_utf_8_is_refused(tmp_path, monkeypatch):
    directory = tmp_path / os.fsdecode(b"d\xff")
    directory.mkdir()
    monkeypatch.chdir(directory)
    with pytest.raises(TpuxError, match="is not UTF-8") as caught:
        take_snapshot(CodeSection(dir="."))
    assert caught.value.where.endswith("d\\xff")


@pytest.fixture
def submodules(repository, another, third, local_urls) -> None:
    """Give the repository a submodule `src/lib` with one of its own, and two whose repository is gone."""
    another.git("submodule", "--quiet", "add", str(third.path), "deep/data")
    another.commit()
    for source, name in ((another, "src/lib"), (third, "src/gone"), (third, "gone")):
        repository.git("submodule", "--quiet", "add", str(source.path), name)
    repository.write("src/main.py")
    repository.commit()
    shutil.rmtree(third.path)


@pytest.mark.parametrize(
    ("inside", "exclude"),
    [("", ["gone", "/src/lib/deep/*"]), ("", ["**/gone/", "data"]), ("src", ["/gone", "/lib/deep"])],
)
def test_excluded_submodules_of_a_repository_are_not_fetched(repository, submodules, home, inside, exclude):
    section = CodeSection(repo=str(repository.path), exclude=exclude)
    answer = take_snapshot(section, None, inside)
    paths = {file.path for file in Snapshots().load(str(answer["snapshot"])).files}
    assert {path for path in paths if not path.rpartition("/")[2].startswith(".git")} == (
        {"main.py", "lib/train.py"} if inside else {"train.py", "src/main.py", "src/lib/train.py"}
    )


@pytest.mark.parametrize(
    ("inside", "exclude", "named"),
    [("", [], "gone"), ("", ["/gone"], "src/gone"), ("src", ["gone"], "lib/deep/data")],
)
def test_a_submodule_that_cannot_be_fetched_can_be_excluded(repository, submodules, home, inside, exclude, named):
    section = CodeSection(repo=str(repository.path), exclude=exclude)
    with pytest.raises(TpuxError, match=f"the submodule {named} cannot be fetched: git failed") as caught:
        take_snapshot(section, None, inside)
    assert caught.value.where == f"code.repo {repository.path}"
    assert f"leave it out: code.exclude: [/{named}]" in caught.value.hint
    assert "tpux-code-" not in str(caught.value)


@pytest.mark.parametrize("others", [True, False])
def test_a_submodule_without_a_url_can_be_excluded(repository, another, home, others):
    repository.git("submodule", "--quiet", "add", str(another.path), "lib")
    (repository.path / ".gitmodules").unlink()
    if others:
        repository.write(".gitmodules", '[submodule "else"]\n\tpath = else\n\turl = /nowhere\n')
    repository.commit()
    with pytest.raises(TpuxError, match="the submodule lib cannot be fetched") as caught:
        take_snapshot(CodeSection(repo=str(repository.path)))
    assert "code.exclude: [/lib]" in caught.value.hint
    assert "tpux-code-" not in str(caught.value)
    assert take_snapshot(CodeSection(repo=str(repository.path), exclude=["/lib"]))["commit"]


def test_a_submodule_that_git_is_told_not_to_fetch_can_be_excluded(repository, another, home, local_urls):
    repository.git("submodule", "--quiet", "add", str(another.path), "libs/lib")
    repository.git("config", "--file", ".gitmodules", "submodule.libs/lib.update", "none")
    repository.commit()
    with pytest.raises(TpuxError, match="the submodule libs/lib is not checked out") as caught:
        take_snapshot(CodeSection(repo=str(repository.path)))
    assert caught.value.where == f"code.repo {repository.path}"
    assert "or exclude it: code.exclude: [/libs/lib]" in caught.value.hint
    assert "tpux-code-" not in f"{caught.value} {caught.value.hint}"
    assert take_snapshot(CodeSection(repo=str(repository.path), exclude=["/libs/lib"]))["commit"]


@pytest.fixture
def lfs(repository, tmp_path, monkeypatch) -> None:
    """Put a file into Git LFS; what git runs in place of git-lfs finds it by the URL of a remote, as that does."""
    (tmp_path / "stored").write_text("weights\n")
    smudge = tmp_path / "smudge"
    search = "for remote in origin $(git config --type=bool lfs.remote.searchall | grep -q true && git remote); do\n"
    cat = 'cat "$(git config "remote.$remote.url")/../stored" 2>/dev/null && exit'
    smudge.write_text(f"#!/bin/sh\n{search}{cat}\ndone\nexit 1\n")
    smudge.chmod(0o755)
    settings = {"filter.lfs.clean": "cat", "filter.lfs.smudge": str(smudge), "filter.lfs.required": "true"}
    repository.write(".gitattributes", "*.w filter=lfs\n")
    repository.write("model.w", POINTER)
    repository.commit()
    for number, (name, value) in enumerate(settings.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", name)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(settings)))


def test_files_in_git_lfs_are_fetched_as_git_does(repository, lfs, home):
    with checkout(str(repository.path), "HEAD", is_commit=False) as tree:
        assert (tree / "model.w").read_text() == "weights\n"
    assert "pointers" not in take_snapshot(CodeSection(repo=str(repository.path)))


@pytest.mark.parametrize("pushed", [True, False])
def test_files_in_git_lfs_of_a_work_tree_come_from_its_origin_or_are_there(repository, lfs, tmp_path, pushed):
    """git-lfs asks the origin, and the work tree itself for what was not pushed."""
    (tmp_path / "elsewhere").mkdir()
    cloned = tmp_path / "elsewhere" / "clone"
    repository.git("clone", "--quiet", "--no-checkout", str(repository.path), str(cloned))
    if not pushed:
        (tmp_path / "stored").rename(cloned.with_name("stored"))
    with checkout(str(cloned), "HEAD", is_commit=False) as tree:
        assert (tree / "model.w").read_text() == "weights\n"


def test_files_that_git_lfs_cannot_fetch(repository, lfs, home, tmp_path):
    (tmp_path / "stored").unlink()
    with pytest.raises(TpuxError, match="smudge filter lfs failed") as caught:
        take_snapshot(CodeSection(repo=str(repository.path)))
    assert caught.value.where == f"code.repo {repository.path}"
    assert "GIT_LFS_SKIP_SMUDGE=1" in caught.value.hint
    assert "tpux-code-" not in str(caught.value)


def test_a_submodule_with_a_relative_url(repository, another, home, local_urls):
    repository.git("submodule", "--quiet", "add", str(another.path), "lib")
    repository.git("config", "--file", ".gitmodules", "submodule.lib.url", f"../{another.path.name}")
    repository.commit()
    with checkout(str(repository.path), "HEAD", is_commit=False) as tree:
        assert (tree / "lib/train.py").exists()


@pytest.mark.parametrize("origin", ["", "../../project"])
def test_what_a_local_work_tree_does_not_have_comes_from_its_origin(work_tree, home, origin):
    if origin:  # counted from the work tree
        work_tree.git("remote", "set-url", "origin", origin)
    with checkout(str(work_tree.path), "HEAD", is_commit=False) as tree:
        assert (tree / "train.py").read_text() == "mine\n"
        assert (tree / "lib/train.py").exists()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, as a dumb server of git does, and prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def dumb(tmp_path, repository, another) -> Iterator[str]:
    """Serve a directory over HTTP as files, and return its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_server_that_only_serves_files(repository, another, home, dumb):
    def publish(source) -> str:
        bare = source.path.with_suffix(".git")
        source.git("clone", "--quiet", "--bare", str(source.path), str(bare))
        source.git("-C", str(bare), "update-server-info")
        return f"{dumb}/{bare.name}"

    first = repository.git("rev-parse", "HEAD")
    publish(another)
    repository.git("submodule", "--quiet", "add", str(another.path), "lib")
    repository.git("config", "--file", ".gitmodules", "submodule.lib.url", "../library.git")
    newest = repository.commit()
    repository.git("tag", "v1", first)
    url = publish(repository)
    found = {}
    for name, value in {"branch": "main", "tag": "v1", "commit": first, "repo": url}.items():
        found[name] = take_snapshot(CodeSection.model_validate({"repo": url, name: value}))
    assert {name: answer["commit"] for name, answer in found.items()} == {
        "branch": newest,
        "tag": first,
        "commit": first,
        "repo": newest,
    }
    paths = {file.path for file in Snapshots().load(str(found["branch"]["snapshot"])).files}
    assert paths >= {"train.py", "lib/train.py"}
    with pytest.raises(TpuxError, match="the repository has no refs/heads/none"):
        take_snapshot(CodeSection(repo=url, branch="none"))
    with pytest.raises(TpuxError, match="the repository has no commit"):
        take_snapshot(CodeSection(repo=url, commit="0123456789" * 4))

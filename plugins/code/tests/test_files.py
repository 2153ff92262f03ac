"""Which files are copied, and what is refused."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from tpux import TpuxError
from tpux_code import git
from tpux_code.files import check_size, choose, lfs_pointers, links_out
from tpux_code.section import CodeSection
from tpux_code.source import directory_of


def test_tracked_and_untracked_but_no_ignored_files(repository):
    repository.write("new file.txt")
    repository.write("data.bin")
    repository.write("train.py", "print(2)\n")
    repository.write("deleted.py")
    repository.commit()
    (repository.path / "deleted.py").unlink()
    assert choose(repository.path, [], []) == [".gitignore", "new file.txt", "train.py"]


def test_only_what_is_below_a_directory_of_the_work_tree(repository):
    repository.write("sub/a.py")
    assert choose(repository.path / "sub", [], []) == ["a.py"]


def test_include_adds_ignored_files_and_exclude_removes_files(repository):
    repository.write("data/vocabulary.bin")
    repository.write("data/other.bin")
    repository.write("notes/a.md")
    found = choose(repository.path, ["data/vocabulary.bin"], ["notes/", ".gitignore"])
    assert found == ["data/vocabulary.bin", "train.py"]


def test_names_that_are_no_text(repository):
    name = "new\nline \udcff é"
    (repository.path / name).write_bytes(b"")
    assert name in choose(repository.path, [], [])


def test_a_directory_without_git(tmp_path, monkeypatch):
    for name in ("a.py", "data.bin", ".venv/lib/x.py", "pkg/__pycache__/y.pyc", "skip/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setenv("PATH", "/nowhere")
    assert choose(tmp_path, [], ["skip"]) == ["a.py", "data.bin"]


@pytest.mark.parametrize("is_work_tree", [True, False])
def test_the_store_is_never_copied(repository, tmp_path, monkeypatch, is_work_tree):
    """It has keys, the secrets of jobs, and the snapshots themselves."""
    repository.write(".tpux/ssh/key")
    repository.write(".tpux-notes")
    if not is_work_tree:
        shutil.rmtree(repository.path / ".git")
    (tmp_path / "link").symlink_to(repository.path)
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "link/.tpux"))
    assert choose(repository.path, [], []) == [".gitignore", ".tpux-notes", "train.py"]
    with pytest.raises(TpuxError, match="is in the store of tpux"):
        choose(repository.path / ".tpux", [], [])


def test_the_home_of_a_user_who_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert directory_of("~nobody-here/x", None) == tmp_path / "~nobody-here/x"
    context = {"check_files": True, "current_directory": tmp_path}
    with pytest.raises(ValidationError, match="there is no directory"):
        CodeSection.model_validate("~nobody-here/x", context=context)


def test_a_work_tree_without_git_installed(repository, tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "bash"):
        (tools / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(TpuxError, match="git is not installed on this machine"):
        choose(repository.path, [], [])


def test_no_directory(tmp_path):
    with pytest.raises(TpuxError, match="there is no directory"):
        choose(tmp_path / "misspelled", [], [])


def test_a_submodule_is_copied(repository, another):
    repository.git("submodule", "--quiet", "add", str(another.path), "lib")
    (another.path / "later.py").write_text("")
    assert choose(repository.path, [], []) == [
        ".gitignore",
        ".gitmodules",
        "lib/.gitignore",
        "lib/train.py",
        "train.py",
    ]


def test_a_submodule_that_is_not_checked_out(repository, another):
    repository.git("submodule", "--quiet", "add", str(another.path), "lib")
    repository.commit()
    repository.git("submodule", "--quiet", "deinit", "--force", "lib")
    with pytest.raises(TpuxError, match="the submodule lib is not checked out") as caught:
        choose(repository.path, [], [])
    assert "submodule update --init" in caught.value.hint
    assert "code.exclude: [/lib]" in caught.value.hint
    assert choose(repository.path, [], ["/lib"]) == [".gitignore", ".gitmodules", "train.py"]


def test_a_repository_inside_that_is_no_submodule(repository, another):
    shutil.move(another.path, repository.path / "vendored")
    assert "vendored/train.py" in choose(repository.path, [], [])


def test_symbolic_links_whose_target_is_not_copied(repository):
    (repository.path / "good").symlink_to("train.py")
    (repository.path / "broken").symlink_to("missing")
    (repository.path / "away").symlink_to("/etc")
    (repository.path / "loop").symlink_to(".")
    repository.write("pkg/a.py")
    (repository.path / "package").symlink_to("pkg")
    files = choose(repository.path, [], [])
    assert {"good", "broken", "away", "package", "loop"} <= set(files)
    assert links_out(repository.path, files) == ["away", "broken"]


def test_sockets_and_pipes_are_left_out(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert choose(tmp_path, [], []) == []


def test_a_size_over_the_limit_names_the_largest_files(tmp_path):
    for name, size in {"small": 10, "model.ckpt": 3_000_000_000, "b.npz": 2_000_000}.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    with pytest.raises(TpuxError) as caught:
        check_size(tmp_path, choose(tmp_path, [], []), 500_000_000)
    expected = (
        "the code has 3.0 GB, and code.max_size is 500 MB; the largest files: model.ckpt (3.0 GB), b.npz (2.0 MB)"
    )
    assert caught.value.message.startswith(expected)
    assert "code.exclude" in caught.value.hint


def test_an_excluded_directory_need_not_be_readable(tmp_path, monkeypatch):
    (tmp_path / "train.py").touch()
    (tmp_path / "private").mkdir()
    scan = os.scandir

    def refuse(path):  # as for users other than root
        if Path(path).name == "private":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(TpuxError, match="a directory cannot be read: Permission denied"):
        choose(tmp_path, [], [])
    assert choose(tmp_path, [], ["private/"]) == ["train.py"]


def test_a_file_that_goes_while_the_directory_is_read_is_left_out(repository, monkeypatch):
    """Editors have temporary files for a moment."""
    repository.write("tmp.swp")
    look = git.list_files

    def listed(directory):
        found = look(directory)
        (repository.path / "tmp.swp").unlink()
        return found

    monkeypatch.setattr(git, "list_files", listed)
    assert "tmp.swp" not in choose(repository.path, [], [])


def test_a_file_whose_status_is_unknown_is_an_error(repository, monkeypatch):
    look = os.lstat

    def refuse(path, **options):
        if str(path).endswith("train.py"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return look(path, **options)

    repository.write("train.py")
    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(TpuxError, match="a file cannot be read: Permission denied"):
        choose(repository.path, [], [])


def test_pointers_of_git_lfs(repository):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 8\n"
    for name, content in {"a.w": pointer, "data/b.w": pointer, "notes.md": f"# LFS\n{pointer}", "c": "version"}.items():
        repository.write(name, content)
    repository.write("large", pointer + 1000 * "x")
    (repository.path / "link").symlink_to("a.w")
    files = choose(repository.path, [], [])
    assert lfs_pointers(repository.path, files) == ["a.w", "data/b.w"]
    assert lfs_pointers(repository.path, [*files, "removed meanwhile"]) == ["a.w", "data/b.w"]

"""Clones of repositories: the revision that was asked for, or an error that names it."""

from __future__ import annotations

import pytest

from tpux import TpuxError
from tpux_code.section import CodeSection
from tpux_code.source import take_snapshot


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

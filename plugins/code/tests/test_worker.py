"""The job's directory on a worker, when the code and what the program has written there meet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

import tpux_testing
from tpux import Job, Put, Result, Sh, Steps
from tpux.model.steps import dry_run
from tpux_code import clean_up, setup, worker
from tpux_code.files import choose
from tpux_code.snapshots import Snapshots


@dataclass
class OneWorker:
    """A home directory on this machine, and the files that are sent to it."""

    home: Path
    tree: Path
    job: Job = field(default_factory=tpux_testing.job)

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
        sent = self._run(worker.send(self.job, Snapshots(), snapshot))
        return sent or self._run(iter_of(worker.install(self.job, snapshot, 0)))

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
                if not result.ok and not step.may_fail:
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


def test_a_first_copy_that_was_cut_off_is_begun_again(one, tmp_path, monkeypatch):
    """Directories have their modes only at the end."""
    one.write({"a/b.py": "1", "c/d.py": "2"})
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin/cp"
    stand_in.write_text('#!/bin/sh\nfor last; do :; done\nmkdir -m 700 -p "$last/a" && echo >"$last/a/b.py"; exit 1\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert one.install() != ""
    stand_in.unlink()
    assert one.install() == ""
    assert one.files() == {"a/b.py": "1", "c/d.py": "2"}
    assert {(one.directory / name).stat().st_mode & 0o777 for name in ("", "a", "c")} == {
        (one.tree / name).stat().st_mode & 0o777 for name in ("", "a", "c")
    }


def test_python_runs_the_new_code_after_an_edit_that_keeps_the_size(one):
    """Python has compiled the old code, and compares only the time and the size of its source."""
    for text in ("A = 1\n", "A = 2\n"):
        one.write({"module.py": text})
        assert one.install() == ""
        command = [sys.executable, "-c", "import module; print(module.A)"]
        done = subprocess.run(command, cwd=one.directory, check=True, capture_output=True, text=True, env={})
        assert done.stdout == text[-2:]
    assert list(one.directory.glob("__pycache__/*.pyc"))


def test_only_what_differs_is_written_and_what_the_program_changed_is_restored(one):
    one.write({"same.py": "1", "pkg/same too": "1", "changed.py": "1", "pkg/removed.py": "1", "edited.py": "1"})
    assert one.install() == ""
    kept = {name: (one.directory / name).stat().st_ino for name in ("same.py", "pkg/same too")}
    (one.directory / "edited.py").write_text("2")
    (one.directory / "mode.py").write_text("result")
    new = {"same.py": "1", "pkg/same too": "1", "changed.py": "2", "edited.py": "1", "link": "-> same.py"}
    one.write(new)
    assert one.install() == ""
    assert one.files() == {**new, "link": "1", "mode.py": "result"}
    assert {name: (one.directory / name).stat().st_ino for name in kept} == kept
    (one.directory / "same.py").chmod(0o700)
    one.write({**new, "link": "-> changed.py"})
    assert one.install() == ""
    assert (one.directory / "link").read_text() == "2"
    assert (one.directory / "same.py").stat().st_mode & 0o777 == 0o644


def test_the_snapshot_of_another_job_stays(one):
    other = OneWorker(one.home, one.tree)
    other.job = replace(other.job, id="000002")
    one.write({"train.py": "1"})
    assert one.install() == other.install() == ""
    snapshots = one.home / worker.ROOT / "snapshots"
    [first] = snapshots.iterdir()
    one.write({"train.py": "1", "more.py": "2"})
    assert one.install() == ""
    assert len(list(snapshots.iterdir())) == 2
    one.write({"train.py": "1", "more.py": "3"})
    assert one.install() == ""
    assert len(list(snapshots.iterdir())) == 2, "the former one of this job has become the new one"
    assert first.exists()
    assert (other.directory / "train.py").read_text() == "1"
    assert one.files() == {"train.py": "1", "more.py": "3"}


def test_nothing_is_removed_or_written_through_a_link_that_the_program_made(one, tmp_path):
    """The program has replaced a directory of the code by a link to its bucket."""
    one.write({"data/keep.txt": "code", "train.py": ""})
    assert one.install() == ""
    shutil.rmtree(one.directory / "data")
    bucket = tmp_path / "bucket"
    (bucket / "empty").mkdir(parents=True)
    (bucket / "keep.txt").write_text("the user's")
    (one.directory / "data").symlink_to(bucket)
    for text in ("code", "changed"):
        one.write({"data/keep.txt": text, "data/empty/new": "", "train.py": text})
        output = one.install()
        assert (bucket / "keep.txt").read_text() == "the user's"
        assert "the program has made a symbolic link where the code has a directory: data;" in output
        assert f"tpux exec 1 --host --worker 0 -- mv .tpux/code/jobs/{one.directory.name}/data" in output
        assert list((bucket / "empty").iterdir()) == []
    one.write({"train.py": "3"})
    assert one.install() == ""
    assert (one.directory / "data/keep.txt").read_text() == "the user's"


@pytest.mark.parametrize(
    ("made", "code", "message"),
    [
        ("out/log", "out", "a directory where the code has a file: out;"),
        ("a b", "a b/c/d.py", r"a file where the code has a directory: a\ b;"),
    ],
)
def test_what_the_program_made_is_in_the_way_of_the_code(one, made, code, message):
    one.write({"train.py": "1"})
    assert one.install() == ""
    (one.directory / made).parent.mkdir(exist_ok=True)
    (one.directory / made).write_text("result")
    for text in ("1", "2"):
        one.write({"train.py": text, code: "code"})
        assert message in one.install()
        assert (one.directory / made).read_text() == "result"
    one.write({"train.py": "3"})
    assert one.install() == ""
    assert one.files() == {"train.py": "3", made: "result"}
    one.write({"train.py": "4", code: "code"})
    top = one.directory / made.partition("/")[0]
    top.rename(one.directory / "renamed")
    assert one.install() == ""
    assert (one.directory / code).read_text() == "code"
    assert (one.directory / "renamed").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_directory_of_another_user_is_in_the_way_of_a_new_file(request):
    """A container that root runs makes such directories; what is in one and was made by the user is no obstacle."""
    nobody, place = 65534, Path(tempfile.mkdtemp())  # pytest's directories are root's
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o755)
    job, snapshot = place / "job", place / "snapshot"
    for name, owner in {"": nobody, "own": nobody, "roots": 0, "roots/own": nobody}.items():
        (job / name).mkdir()
        os.chown(job / name, owner, owner)

    def copy(path: str) -> str:
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).write_text(path)
        done = subprocess.run(
            ["bash", "-c", f"exec 3</dev/null\n{worker._COPY}", "-", "12", "3", "code", job, snapshot],
            user=nobody,
            input=f"./{path} 1 2 81a4\0".encode(),
            stdout=subprocess.PIPE,
            check=False,
        )
        assert (done.returncode == 0) == (job / path).exists()
        return done.stdout.decode()

    assert "a directory of another user where the code has one of its own: roots; " in copy("roots/a.py")
    assert "roots; rename or remove it: tpux exec 12 --host --worker 3 -- mv code/roots code/roots.old" in copy(
        "roots/a/b"
    )
    assert copy("own/a.py") == copy("roots/own/a.py") == copy("a.py") == ""


def test_files_directories_and_links_change_into_each_other(one):
    steps = [
        {"a/b/c.py": "1", "d": "1"},
        {"a": "2", "d/e/f": "2"},
        {"a": "-> d", "d/e/f": "3"},
        {"a/b": "4", "d": "-> a"},
        {"a/b/c.py": "1", "d": "1"},
    ]
    for step in steps:
        one.write({**step, "same": "as in the snapshot that the next one is built from"})
        assert one.install() == ""
        copied = {str(p.relative_to(one.tree)) for p in one.tree.rglob("*")}
        assert {str(p.relative_to(one.directory)) for p in one.directory.rglob("*")} == copied


def test_a_copy_that_failed_is_repeated_and_leaves_nothing_behind(one, tmp_path, monkeypatch):
    one.write({"old.py": "1"})
    assert one.install() == ""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cp").write_text('#!/bin/sh\nPATH="${PATH#*:}"\ncp "$@"\necho "No space left on device"\nexit 1\n')
    (tools / "cp").chmod(0o755)
    one.write({"half.py": "2"})
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tools), prepend=":")
        assert "No space left on device" in one.install()
    one.write({"new.py": "3"})
    assert one.install() == ""
    assert one.files() == {"new.py": "3"}


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_snapshot_that_a_crash_has_damaged_is_sent_again(one, *, same_boot):
    one.write({"train.py": "12", "kept \\ odd\n name": "3", "link": "-> train.py"})
    assert one.install() == ""
    root = one.home / worker.ROOT
    [stored] = (root / "snapshots").iterdir()
    status = (stored / "train.py").stat()
    (stored / "train.py").write_text("" if same_boot else "\0\0")
    os.utime(stored / "train.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    if not same_boot:
        (root / "lists" / f"{stored.name}.boot").write_text("an earlier boot\n")
    shutil.rmtree(one.directory)
    installed = one._run(iter_of(worker.install(one.job, stored.name, 0)))
    assert installed == "failed", "it has not put the damaged files there"
    assert one.install() == ""
    assert one.files()["train.py"] == "12"


def test_a_damaged_snapshot_is_no_base_of_the_next(one):
    one.write({"train.py": "1", "large.py": "2" * 1000})
    assert one.install() == ""
    [stored] = (one.home / worker.ROOT / "snapshots").iterdir()
    (stored / "large.py").write_text("")
    one.write({"train.py": "3", "large.py": "2" * 1000})
    assert "the code that was on the worker is damaged: it is sent again" in one.install()
    assert one.install() == ""
    assert one.files() == {"train.py": "3", "large.py": "2" * 1000}


def test_no_version_of_the_code_counts_after_an_install_that_failed(one, tmp_path, monkeypatch):
    one.write({"train.py": "1"})
    assert one.install() == ""
    first = Snapshots().make(one.tree, choose(one.tree, [], [])).id
    assert one._run(iter_of(worker.check_steps(one.job, first))) == ""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sync").write_text('#!/bin/sh\ncase $2 in jobs/*) echo "the disk fails"; exit 1 ;; esac\n')
    (tools / "sync").chmod(0o755)
    one.write({"train.py": "2"})
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tools), prepend=":")
        assert "the disk fails" in one.install()
    assert one.files() == {"train.py": "2"}
    assert "the code is not on the worker, or another version" in one._run(iter_of(worker.check_steps(one.job, first)))


@pytest.mark.parametrize("edited", ODD := ["a", "a b", "a 5", "a\x01b", "a\n5 5 f", "a.b", "a-b/c d", "a 1 1 81a4"])
def test_files_of_any_name_are_restored(one, edited):
    code = {"pkg/" + name: name for name in ODD}
    one.write(code)
    assert one.install() == ""
    (one.directory / "pkg" / edited).write_text("2")
    (one.directory / "pkg/a 5").chmod(0o700)
    one.write({**code, "new.py": "1"})
    assert one.install() == ""
    assert one.files() == {**code, "new.py": "1"}
    assert not (one.directory / "pkg/a 5").stat().st_mode & 0o100


def test_machines_that_stay_keep_what_the_program_wrote_and_none_of_the_code(one, tmp_path):
    other = OneWorker(one.home, one.tree)
    other.job = replace(other.job, id="000002")
    one.write({"train.py": "1", "pkg/module.py": "2", "pkg/link": "-> module.py", "edited.yaml": "3", "data/x": "4"})
    assert one.install() == other.install() == ""
    (one.directory / "pkg/__pycache__").mkdir()
    (one.directory / "pkg/__pycache__/module.pyc").write_text("")
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    (bucket / "x").write_text("the user's")
    os.utime(bucket / "x", (0, 0))
    shutil.rmtree(one.directory / "data")
    (one.directory / "data").symlink_to(bucket)
    (one.directory / "edited.yaml").write_text("mine")
    (one.directory / "run").mkdir()
    (one.directory / "run/log").write_text("result")
    assert one._run(clean_up(one.job, released=False)) == ""
    assert (one.directory / "train.py").exists()
    for _ in range(2):
        assert one._run(clean_up(one.job, released=True)) == ""
        assert one.files() == {"edited.yaml": "mine", "run/log": "result"}
        assert (bucket / "x").read_text() == "the user's"
    (one.directory / "data").unlink()
    one.write({"train.py": "1", "edited.yaml": "3"})
    assert one.install() == ""
    assert one.files() == {"train.py": "1", "edited.yaml": "3", "run/log": "result"}
    assert one._run(clean_up(other.job, released=True)) == ""
    jobs = [path.name for path in (one.home / worker.ROOT / "jobs").iterdir()]
    assert not [name for name in jobs if name.startswith(other.directory.name)]


def cut_off(steps: Steps, number: int) -> Steps:
    """Yield the first steps only."""
    step = next(steps)
    for _ in range(number):
        step = steps.send((yield step))
    steps.close()


def test_machines_that_stay_keep_nothing_of_a_set_up_that_was_cut_off(one, tmp_path, monkeypatch):
    one.write({"old.py": "1"})
    assert one.install() == ""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cp").symlink_to("/bin/false")
    one.write({"old.py": "2"})
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        one.install()
    one.write({"new.py": "3"})
    snapshot = Snapshots().make(one.tree, ["new.py"]).id
    assert one._run(cut_off(worker.send(one.job, Snapshots(), snapshot), 3)) == ""
    root = one.home / worker.ROOT
    assert list(root.rglob("*.tar.gz"))
    assert one._run(clean_up(one.job, released=True)) == ""
    assert sorted(path.name for path in root.rglob("*")) == ["jobs", "lock", "snapshots"]


def test_machines_that_stay_keep_the_snapshots_of_other_jobs_only(one):
    other = OneWorker(one.home, one.tree)
    other.job = replace(other.job, id="000002")
    snapshots = one.home / worker.ROOT / "snapshots"
    one.write({"train.py": "1"})
    assert one.install() == other.install() == ""
    [common] = snapshots.iterdir()
    one.write({"train.py": "2"})
    assert one.install() == ""
    assert len(list(snapshots.iterdir())) == 2
    (snapshots / ".new-cut-off").mkdir()
    for _ in range(2):
        assert one._run(clean_up(one.job, released=True)) == ""
        assert list(snapshots.iterdir()) == [common]
    assert (other.directory / "train.py").read_text() == "1"
    assert other._run(clean_up(other.job, released=True)) == ""
    assert list(snapshots.iterdir()) == []


def test_a_snapshot_that_a_job_is_about_to_install_stays(one):
    other = OneWorker(one.home, one.tree)
    other.job = replace(other.job, id="000002")
    one.write({"train.py": "1"})
    assert one.install() == ""
    snapshot = Snapshots().make(one.tree, choose(one.tree, [], [])).id
    assert other._run(worker.send(other.job, Snapshots(), snapshot)) == ""
    assert one._run(clean_up(one.job, released=True)) == ""
    assert other._run(iter_of(worker.install(other.job, snapshot, 0))) == ""
    assert other.files() == {"train.py": "1"}


def test_code_that_is_removed_before_it_is_installed_is_sent_again(one):
    """Other jobs have sent so much meanwhile that the worker has not kept the snapshot."""
    one.write({"train.py": "1"})
    one.home.mkdir()
    snapshot = Snapshots().make(one.tree, choose(one.tree, [], [])).id
    one.job = replace(one.job, resolved={"code": {"snapshot": snapshot}})

    def interrupted() -> Steps:
        steps, removed, result = setup(one.job, tpux_testing.worker(), []), False, None
        while True:
            try:
                step = steps.send(result)
            except StopIteration:
                return
            sent = one.home / worker.ROOT / "snapshots" / snapshot
            if isinstance(step, Sh) and step.title.startswith("put the code") and sent.exists() and not removed:
                shutil.rmtree(sent)
                removed = True
            result = yield step

    assert one._run(interrupted()) == ""
    assert one.files() == {"train.py": "1"}


def test_a_dry_run_shows_what_a_worker_without_any_code_gets(one):
    one.write({"train.py": "1"})
    snapshot = Snapshots().make(one.tree, choose(one.tree, [], [])).id
    job = replace(one.job, resolved={"code": {"snapshot": snapshot}})
    planned = dry_run(setup(job, tpux_testing.worker(), []))
    titles = [step.title if isinstance(step, Sh) else step.remote for step in planned]
    install = "put the code into the job's directory, if it is on the worker"
    archive = f".tpux/code/jobs/{job.key}.{snapshot}-all.tar.gz"
    assert titles == [install, f".tpux/code/jobs/{job.key}.list", archive, "unpack the code", install]

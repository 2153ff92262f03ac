"""The API for scripts, with real jobs on this machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tpux import api
from tpux.errors import ConfigError, UsageError
from tpux.store import Store, requests
from tpux.supervisor import client

pytestmark = pytest.mark.process


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Return a directory for configs, beside an empty store whose supervisor is stopped after the test."""
    monkeypatch.setenv("TPUX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TPUX_USER", "ann")
    yield tmp_path
    client.stop(Store(), timeout=60)


def config(work: Path, cmd: str) -> Path:
    path = work / "train.yaml"
    path.write_text(f"tpu: {{accelerator: v4-16}}\ncommand: {{cmd: '{cmd}'}}\n")
    return path


def test_a_job_from_submission_to_its_output(work: Path) -> None:
    path = config(work, "echo worker $TPUX_WORKER")
    job = api.submit(path, ["job.name=first"])
    assert (job.id, job.name, job.user, job.attempt, job.output_dir) == ("000001", "first", "ann", 0, "")
    types = [event.type for event in api.events("first", follow=True)]
    assert types[0] == "created"
    assert "attempt-ended" in types
    ended = api.wait("1", timeout=100)
    assert (ended.state, ended.ended, ended.attempt, ended.workers, ended.failure) == ("succeeded", True, 1, 2, None)
    assert ended.output_dir.endswith("attempt-1")
    logs = api.outputs("first")
    assert {worker: log.read_text() for worker, log in logs.items()} == {0: "worker 0\n", 1: "worker 1\n"}
    assert api.outputs("first", attempt=2) == {}
    *_, done = api.follow("first", lambda info: info.done, timeout=100)
    assert api.jobs() == [api.job("first")] == [api.job(1)] == [done]
    assert next(iter(api.events("first"))).type == "created"


def test_following_a_job_yields_each_state_once(work: Path) -> None:
    job = api.submit(config(work, "echo fine"))
    seen = list(api.follow(job.id, lambda info: info.done, timeout=100))
    assert seen[-1].state == "succeeded"
    assert all(one != other for one, other in itertools.pairwise(seen))
    assert list(api.follow(job.id)) == [api.job(job.id)], "the current state, at once"


def test_following_a_job_until_a_condition_holds_and_until_it_is_deleted(work: Path) -> None:
    job = api.submit(config(work, "sleep 600"))
    *_, last = api.follow(job.id, lambda info: info.state == "running", timeout=100)
    assert last.state == "running"
    requests.write(Store().find(job.id), "delete")
    with pytest.raises(UsageError, match="job 1 was deleted"):
        list(api.follow(job.id, lambda _: False, timeout=100))


@pytest.mark.parametrize("follow", [api.follow, lambda job: api.events(job, follow=True)])
def test_a_supervisor_that_is_killed_is_replaced_while_a_job_is_followed(
    work: Path, follow: Callable[[str], Iterator[object]]
) -> None:
    job = api.submit(config(work, f"until [ -e {work}/go ]; do sleep 0.1; done"))
    *_, _ = api.follow(job.id, lambda info: info.state == "running", timeout=100)
    followed = follow(job.id)
    next(followed)
    pid = client.pid(Store())
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    (work / "go").touch()
    for _ in followed:
        pass
    assert api.job(job.id).state == "succeeded"


def test_a_note_says_what_a_job_waits_for_and_that_nothing_happens(work: Path) -> None:
    job, notes = api.submit(config(work, "sleep 600")), list[str]()
    *_, _ = api.follow(job.id, lambda info: info.state == "running", timeout=100)
    followed = api.follow(job.id, timeout=4, note=notes.append)
    next(followed)
    client.stop(Store(), timeout=60)
    with pytest.raises(TimeoutError, match="job 1 is running after 4 s"):
        list(followed)
    assert notes.count("the supervisor was stopped; jobs continue after: tpux supervisor start") == 1
    assert notes.count("waiting for job 1: running: attempt 1") == 1
    client.notify(Store())
    api.stop(job.id, release=True, timeout=100)


def test_a_failed_job_has_its_failure(work: Path) -> None:
    job = api.wait(api.submit(config(work, "exit 3"), ["job.rule=pass"]).id, timeout=100)
    assert job.state == "failed"
    assert job.failure is not None
    assert job.failure.kind == "program"


def test_the_machines_of_another_job_are_asked_for(work: Path) -> None:
    path = config(work, "exit 3")
    failed = api.wait(api.submit(path, ["job.rule=pass"]).id, timeout=100)
    with pytest.raises(UsageError, match="the allocator local cannot transfer machines"):
        api.submit(path, on=failed.id)
    assert len(api.jobs()) == 1


def test_stopping_a_job(work: Path) -> None:
    job = api.submit(config(work, "sleep 600"))
    with pytest.raises(TimeoutError, match=r"job 1 is .* after 0 s"):
        api.wait(job.id, timeout=0)
    with pytest.raises(ValueError, match="exclude"):
        api.stop(job.id, release=True, keep=True)
    assert api.stop(job.id, release=True, timeout=100).state == "stopped"
    assert api.stop(job.id).state == "stopped"


def test_invalid_arguments(work: Path) -> None:
    with pytest.raises(ConfigError, match="unknown section 'comand'"):
        api.submit(config(work, "true"), ["comand.cmd=x"])
    for call in (api.job, api.events, api.follow, api.outputs, api.wait, api.stop, api.open_job, api.workers):
        for name in ("7", 7):
            with pytest.raises(UsageError, match="there is no job 7"):
                call(name)
    with pytest.raises(TypeError, match=r"overrides is a list, such as \['tpu.pricing=spot'\], not a str"):
        api.submit(config(work, "true"), "tpu.pricing=spot")
    assert api.jobs() == []


def test_the_exported_names_are_listed_and_importable() -> None:
    assert set(api.__all__) <= set(dir(api))
    assert {"submit", "wait", "workers", "machines"} <= set(api.__all__)
    assert len(dir(api)) <= 25, "a command plugin's author reads them all"
    for name in api.__all__:
        getattr(api, name)
    with pytest.raises(AttributeError, match=r"tpux\.api.* has no attribute 'sumbit'"):
        _ = api.sumbit  # type: ignore[attr-defined]


def install(directory: Path, name: str, body: str) -> None:
    (directory / f"tpux_{name}.py").write_text(dedent(body))
    info = directory / f"tpux_{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tpux-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tpux]\n{name} = tpux_{name}\n")


NOISY = """
    from pathlib import Path
    from tpux import Failure, Section, hookimpl

    here = Path(__file__)
    here.with_suffix(".imported").touch()

    class Nothing(Section):
        pass

    @hookimpl
    def config_section():
        return Nothing

    @hookimpl
    def preflight(job):
        here.with_suffix(".preflight").touch()

    @hookimpl
    def public_keys(job):
        here.with_suffix(".public_keys").touch()

    @hookimpl
    def check():
        yield from ()

    @hookimpl
    def on_event(job, event):
        here.with_suffix(".on_event").touch()

    @hookimpl
    def classify_failure(attempt):
        here.with_suffix(".classify_failure").touch()
        return [Failure("tpu-busy")]

    @hookimpl
    def solve(job, failure, worker):
        here.with_suffix(".solve").touch()
"""


@pytest.mark.system
def test_plugins_that_are_not_selected_get_events_and_failures_only(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("selected", "sectioned", "unnamed"):
        install(work, name, NOISY)
    monkeypatch.setenv("PYTHONPATH", str(work))
    path = config(work, "exit 3")
    path.write_text(
        path.read_text() + "setup: {modules: [selected]}\nsectioned: {}\njob: {max_restarts: {tpu-busy: 1}}\n"
    )

    def called(name: str) -> set[str]:
        return {path.suffix for path in work.glob(f"tpux_{name}.*")} - {".py"}

    def tpux(*args: str) -> None:
        done = subprocess.run([sys.executable, "-m", "tpux.cli.main", *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    tpux("preflight", str(path))
    assert called("unnamed") == {".imported"}  # it is asked for every job, so it is said if it is broken
    assert called("sectioned") == {".imported"}  # to validate its section
    assert called("selected") == {".imported", ".preflight"}
    tpux("create", str(path), "job.rule=resume")
    assert api.wait("1", timeout=100).state == "failed"
    everyone = {".imported", ".on_event", ".classify_failure", ".solve"}
    assert called("unnamed") == everyone
    assert called("sectioned") == everyone
    assert called("selected") == {*everyone, ".preflight", ".public_keys"}

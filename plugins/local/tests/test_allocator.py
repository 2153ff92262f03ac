from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tpux_local
from tpux import HostUnreachableError, Released, TpuxError, Waiting
from tpux_local import allocator
from tpux_local.host import LocalHost
from tpux_local.mounts import mounts_below
from tpux_local.processes import processes_of
from tpux_local.section import LocalSection, LocalTpuSection

if TYPE_CHECKING:
    from conftest import Local

BACKGROUND = "setsid sleep 100 </dev/null >/dev/null 2>&1 &"
IGNORES_TERM = f"trap '' TERM; {BACKGROUND}"


@pytest.mark.parametrize(
    ("accelerator", "nodes", "workers"),
    [(None, 1, 1), ("v4-32", 1, 4), ("v5litepod-8", 1, 1), ("v6e-16", 3, 12), (["v4-16", "v4-8"], 1, 2)],
)
def test_number_of_workers_of_the_accelerator(
    local: Local, accelerator: str | list[str] | None, nodes: int, workers: int
) -> None:
    local.tpu = LocalTpuSection(accelerator=accelerator, node_count=nodes)
    allocation = local.provision()
    assert [worker.index for worker in allocation.workers] == list(range(workers))
    assert [worker.slice for worker in allocation.workers] == [i * nodes // workers for i in range(workers)]
    assert (allocation.slices, allocation.transport, allocation.costs) == (nodes, "local", False)
    assert allocation.storage == str(local.directory / "output")
    for host in local.hosts():
        assert host.home.stat().st_mode & 0o777 == 0o700
        assert host.home.is_relative_to(local.directory / "machines/1")


def test_provision_is_idempotent(local: Local) -> None:
    first = local.provision()
    LocalHost(first.workers[0], {}).put(b"", "kept")
    assert local.provision() == first
    assert LocalHost(first.workers[0], {}).read(("kept", 0)) == [b""]
    assert local.inspect().state == "ready"


def test_without_machines(local: Local) -> None:
    assert local.inspect().state == "gone"
    assert local.release() == Released()


def release_all(local: Local) -> None:
    deadline = time.monotonic() + 10
    while isinstance(local.release(), Waiting):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Mount a directory with one file elsewhere, as a stand-in for a bucket; returns the file's own path."""
    source = tmp_path / "bucket"
    source.mkdir()
    (source / "checkpoint").write_text("weights")
    points = []

    def do(point: Path) -> Path:
        point.mkdir(parents=True)
        if subprocess.run(["mount", "--bind", source, point], capture_output=True).returncode:
            pytest.skip("mount needs root")
        points.append(point)
        return source / "checkpoint"

    yield do
    for point in mounts_below(tmp_path):
        subprocess.run(["umount", "-l", point])


@pytest.mark.parametrize("ending", ["release", "preempt"])
def test_a_bucket_mounted_in_a_worker_keeps_its_content(
    local: Local, mount: Callable[[Path], Path], ending: str
) -> None:
    [host] = local.hosts()
    content = mount(host.home / "gcs data/bucket")
    if ending == "release":
        release_all(local)
        assert mounts_below(local.directory) == []
        assert (host.home / "gcs data/bucket").is_dir()
    else:
        local.section = LocalSection(preempt_after=0)
        assert local.inspect().state == "preempted"
        assert not (local.directory / "machines/preempted-1").exists()
    assert content.read_text() == "weights"


@pytest.mark.parametrize("script", ["true", BACKGROUND, IGNORES_TERM])
def test_release_ends_processes_and_keeps_files(local: Local, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "KILL_GRACE", 0.1)
    [host] = local.hosts()
    host.run(script)
    host.put(b"", "kept")
    release_all(local)
    assert processes_of([host.home]) == []
    assert local.release() == Released()
    assert (host.home / "kept").exists()
    assert local.inspect().state == "gone"
    [other] = local.hosts()
    assert other.home == local.directory / "machines/2/worker-0"


def test_processes_of_other_workers_are_not_included(local: Local) -> None:
    local.tpu = LocalTpuSection(accelerator="v4-16")
    first, second = local.hosts()
    first.run(BACKGROUND)
    second.run(BACKGROUND)
    assert len(processes_of([first.home])) == len(processes_of([second.home])) == 1


def test_a_process_that_calls_exec_in_a_loop_is_found(local: Local) -> None:
    """Its environment is empty for a moment each time, which must not look like a process that has ended."""
    [host] = local.hosts()
    host.run("echo 'exec sh loop' > loop; setsid sh loop </dev/null >/dev/null 2>&1 &")
    assert {len(processes_of([host.home])) for _ in range(100)} == {1}


def test_a_preemption_kills_processes_and_deletes_files(local: Local) -> None:
    local.section = LocalSection(preempt_after=0)
    local.tpu = LocalTpuSection(accelerator="v4-16")
    hosts = local.hosts()
    for host in hosts:
        host.run(IGNORES_TERM)
    assert local.inspect(attempt=0).state == "ready", "the time begins with the command's start"
    machines = local.inspect()
    assert (machines.state, "preempt_after" in machines.evidence) == ("preempted", True)
    assert processes_of([host.home for host in hosts]) == []
    assert [path.name for path in (local.directory / "machines").iterdir()] == ["machines.json"]
    with pytest.raises(HostUnreachableError):
        hosts[0].run("true")
    assert local.inspect().state == "preempted"
    assert local.release() == Released()
    assert local.release() == Released()
    assert [host.home.parent.name for host in local.hosts()] == ["2", "2"]
    assert local.inspect().state == "ready"


def test_the_program_on_the_other_slices_runs_until_the_release(local: Local) -> None:
    local.section = LocalSection(preempt_after=0, preempt_slices=(1,))
    local.tpu = LocalTpuSection(accelerator="v4-16", node_count=2)
    first = local.provision()
    kept = LocalHost(first.workers[0], {})
    kept.run(BACKGROUND)
    for _ in range(2):
        machines = local.inspect()
        assert (machines.state, tuple(machines.lost)) == ("preempted", (1,))
    assert len(processes_of([kept.home])) == 1
    while local.release() != Released():
        pass
    assert processes_of([kept.home]) == []
    again = local.provision()
    assert {Path(worker.details["home"]).parent.name for worker in again.workers} == {"2"}
    shutil.rmtree(Path(again.workers[2].details["home"]).parent)
    gone = local.inspect(attempt=2)
    assert gone.state == "gone"


def test_the_release_of_preempted_machines_ends_the_other_slices(local: Local) -> None:
    local.section = LocalSection(preempt_after=0, preempt_slices=(1,))
    local.tpu = LocalTpuSection(accelerator="v4-8", node_count=2)
    kept = local.hosts()[0]
    kept.run(BACKGROUND)
    local.inspect()
    while local.release() != Released():
        pass
    assert processes_of([kept.home]) == []
    assert {host.home.parent.name for host in local.hosts()} == {"2"}


def test_an_interrupted_preemption_is_completed(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    local.section = LocalSection(preempt_after=0)
    [host] = local.hosts()
    host.run(BACKGROUND)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(allocator, "send", killed)
        with pytest.raises(KeyboardInterrupt):
            local.inspect()
    assert processes_of([host.home])
    assert local.release() == Released()
    assert processes_of([host.home]) == []


def test_not_preempted_while_processes_are_running(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    local.section = LocalSection(preempt_after=0)
    local.provision()
    monkeypatch.setattr(allocator, "processes_of", lambda _: [0])
    monkeypatch.setattr(allocator, "send", lambda *_: None)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    assert local.inspect().state == "unknown"
    assert isinstance(local.release(), Waiting)


def test_only_the_first_attempt_is_preempted(local: Local) -> None:
    local.section = LocalSection(preempt_after=0)
    local.provision()
    assert local.inspect(attempt=0).state == "ready"
    assert local.inspect(attempt=2).state == "ready"
    assert local.inspect(attempt=1).state == "preempted"


def test_the_machines_of_each_of_the_first_attempts_are_preempted(local: Local) -> None:
    local.section = LocalSection(preempt_after=0, preempt_times=2)
    for attempt in (1, 2):
        local.provision()
        assert local.inspect(attempt=attempt - 1).state == "ready", "they are set up"
        assert local.inspect(attempt=attempt).state == "preempted"
        assert local.release() == Released()
    local.provision()
    assert local.inspect(attempt=3).state == "ready"


def test_an_attempt_on_kept_machines_ends_the_simulation(local: Local) -> None:
    local.section = LocalSection(preempt_after="1h", preempt_times=2)
    local.provision()
    assert local.inspect(attempt=1).state == "ready"
    local.section = LocalSection(preempt_after=0, preempt_times=2)
    assert local.inspect(attempt=2).state == "ready"


def test_a_preemption_is_announced_before_it_happens(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    local.section = LocalSection(preempt_after=4, preempt_notice="30s")
    local.tpu = LocalTpuSection(accelerator="v4-16", node_count=2)
    notice = local.provision().notice
    hosts = local.hosts()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert local.inspect().state == "ready"
    monkeypatch.setattr(time, "time", lambda: now + 4)
    assert local.inspect().state == local.inspect().state == "ready"
    for host in hosts:
        assert host.run(notice, timeout=20).text == "simulated preemption in 30 s (local.preempt_notice)"
    monkeypatch.setattr(time, "time", lambda: now + 33)
    assert local.inspect().state == "ready"
    monkeypatch.setattr(time, "time", lambda: now + 34)
    machines = local.inspect()
    assert (machines.state, machines.evidence) == ("preempted", "simulated preemption after 34 s (local.preempt_after)")
    assert local.provision().notice == notice


def test_without_a_notice_nothing_waits_for_one_on_the_workers(local: Local) -> None:
    local.section = LocalSection(preempt_after=4)
    assert local.provision().notice == ""


def test_only_the_slices_that_are_lost_get_the_notice(local: Local) -> None:
    local.section = LocalSection(preempt_after=0, preempt_notice="1h", preempt_slices=(1,))
    local.tpu = LocalTpuSection(accelerator="v4-8", node_count=2)
    kept, lost = local.hosts()
    assert local.inspect().state == "ready"
    assert [len(list(host.home.glob(".preemption-announced"))) for host in (kept, lost)] == [0, 1]


def test_a_second_call_does_not_move_the_deadline(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    local.section = LocalSection(preempt_after="4s")
    local.provision()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    assert local.inspect().state == "ready"
    monkeypatch.setattr(time, "time", lambda: now + 3)
    assert local.inspect().state == "ready"
    assert local.inspect().poll_after <= 1
    monkeypatch.setattr(time, "time", lambda: now + 4)
    assert local.inspect().state == "preempted"


def test_deleted_homes(local: Local) -> None:
    [host] = local.hosts()
    host.home.parent.rename(local.directory / "elsewhere")
    assert local.inspect().state == "gone"


def test_a_corrupt_state_file(local: Local) -> None:
    local.provision()
    (local.directory / "machines/machines.json").write_text('{"generation": 1')
    with pytest.raises(TpuxError, match="invalid allocation state") as error:
        local.inspect()
    assert error.value.where.endswith("machines.json")


def test_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tpux_local.preflight() == []
    monkeypatch.setenv("PATH", "")
    [finding] = tpux_local.preflight()
    assert finding.message == "programs not found on this machine: sh, flock, setsid"

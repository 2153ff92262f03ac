"""Code that is large for all workers together: it is sent to one of them, and the others copy it from each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import typer

from tpux import Job, Peer, Put, TpuxError
from tpux_code import cli, worker
from tpux_code.snapshots import Snapshots
from tpux_local import shell_on
from tpux_local.host import LocalHost
from tpux_testing import run_job
from tpux_testing.sandbox import Sandbox
from tpux_worker_tools import peer_copy

PROGRAM = "find . ! -type d -printf '%p %y %m %l\\n' | sort; cat link; stat -c %Y 'a b/data'"


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch) -> None:
    monkeypatch.setattr(worker, "LARGE", 10)


@pytest.fixture
def tree(tmp_path) -> Path:
    tree = tmp_path / "tree"
    (tree / "a b").mkdir(parents=True)
    (tree / "a b/data").write_text("x" * 100_000)
    (tree / "run\nme").write_text("#!/bin/sh\n")
    (tree / "run\nme").chmod(0o755)
    (tree / "link").symlink_to("a b/data")
    return tree


def test_it_leaves_this_machine_once(tree):
    ran = run_job({"tpu": {"accelerator": "v4-32"}, "code": str(tree), "command": {"cmd": PROGRAM}})
    assert ran.state == "succeeded", ran.why
    sent = {number: ran.logs[f"code_worker_{number}.log"].count(".tar.gz\n") for number in range(4)}
    assert sent == {0: 1, 1: 0, 2: 0, 3: 0}, ran.logs
    assert "copied from worker 1" in ran.logs["code_worker_3.log"]
    assert "x" * 1000 in ran.output[0]
    assert len(set(ran.output.values())) == 1, "each worker has the same files, modes and times"


@pytest.fixture
def sent(monkeypatch) -> list[int]:
    """Return the workers to which code is copied from this machine; the disk of one that `FULL` names is full."""
    sent, original = list[int](), LocalHost.put

    def put(self: LocalHost, source: Path | bytes, remote: str, mode: int = 0o600) -> None:
        if remote.endswith(".tar.gz"):
            sent.append(self.worker.index)
            if Path(self.worker.details["home"], FULL).exists():
                raise TpuxError("no space left on device")
        original(self, source, remote, mode)

    monkeypatch.setattr(LocalHost, "put", put)
    return sent


FULL = "full"


def test_a_sync_leaves_this_machine_once(tree, monkeypatch, capsys, sent):
    monkeypatch.setattr(cli, "LARGE", 10)
    with Sandbox() as sandbox:
        command = {"cmd": "exec sleep 1000", "grace_period": 0}
        job = sandbox.start({"tpu": {"accelerator": "v4-32"}, "code": str(tree), "command": command})
        job.until(lambda state: state.run.running)
        machines = job.state.machines
        assert machines is not None
        homes = [Path(worker.details["home"]) for worker in machines.workers]
        sent.clear()
        for content in ("y", "z"):
            (tree / "a b/data").write_text(content * 100_000)
            cli.sync(typer.Context(typer.main.get_command(cli.app)), job.state.id)
            assert "sent to 4 of 4 workers" in capsys.readouterr().err
        for home in homes:
            newest = max((home / worker.ROOT / "snapshots").iterdir(), key=lambda path: path.stat().st_mtime)
            assert (newest / "a b/data").read_text() == "z" * 100_000
        assert sent == [0, 0]
        monkeypatch.setattr(peer_copy, "UNREACHED_TIMEOUT", 0)
        (homes[0] / FULL).touch()
        (tree / "a b/data").write_text("w" * 100_000)
        cli.sync(typer.Context(typer.main.get_command(cli.app)), job.state.id)
        said = capsys.readouterr().err
        # The first one may begin so late that another one, which has not waited for it, has the code by then.
        assert "sent to 3 of 4 workers" in said or "sent to 4 of 4 workers" in said, said
        (homes[0] / FULL).unlink()


UNREACHED = ("sh", "-c", "exit 255")
CUT_OFF = (
    "sh",
    "-c",
    'script=$(cat); case $script in *"set -- send"*) echo "$script" | "$@" | head -c 60000 ;; esac',
    "-",
)
EMPTY = ("sh", "-c", 'script=$(cat); case $script in *"set -- send"*) tar -cf - -T /dev/null ;; esac')


@pytest.mark.parametrize("relay", [UNREACHED, CUT_OFF, EMPTY])
def test_a_worker_whose_relay_is_lost_gets_it_from_this_machine(tree, home, local_host, monkeypatch, relay):
    monkeypatch.setattr(peer_copy, "UNREACHED_TIMEOUT", 0)
    job = Job("000001", "me", "ab12", Path(), {})
    hosts = [local_host(), local_host()]
    snapshot = Snapshots().make(tree, ["a b/data", "link", "run\nme"]).id

    def send(index: int, peers: list[Peer]) -> list[str]:
        """Send the code to a worker; return the files that were copied from this machine."""
        steps, step, put = worker.send(job, Snapshots(), snapshot, index, peers), None, []
        step = next(steps)
        while True:
            if isinstance(step, Put):
                put += [step.remote] if not step.remote.endswith(".list") else []
                hosts[index].put(step.source, step.remote, step.mode)
            else:
                result = hosts[index].run(f"set -e\n{step.script}")
                assert result.ok or step.may_fail, result.text
            try:
                step = steps.send(result)
            except StopIteration:
                return put

    assert send(0, []) != []
    of_job = replace(job, resolved={"local": hosts[0]._resolved})
    shell = tuple(shell_on(hosts[0].worker, of_job))
    assert send(1, [Peer(0, (*relay, *shell))]) != []
    assert hosts[1].run(f"cat {worker.ROOT}/snapshots/{snapshot}/link").text == "x" * 100_000
    assert hosts[1].run(f"ls -A {worker.ROOT}").text.split() == ["jobs", "lists", "lock", "snapshots"]
    hosts[1].run(f"rm -rf {worker.ROOT}")
    assert send(1, [Peer(0, shell)]) == []
    assert hosts[0].run(f"ls -A {worker.ROOT}").text.split() == ["jobs", "lists", "lock", "snapshots"]

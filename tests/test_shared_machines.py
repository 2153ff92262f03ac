"""Workers that share a home directory, and one machine under two addresses."""

from __future__ import annotations

import pytest

PLUGIN = """
    from pathlib import Path

    from tpux import Allocation, MachineStatus, Ready, Released, Worker, hookimpl
    from tpux_local import tpu_section
    from tpux_local.host import LocalHost

    @hookimpl
    def provision(request):
        root = request.directory
        workers = []
        for index in range(2):
            home, machine = root / "home", root / "MACHINE"
            for directory in (home, machine):
                directory.mkdir(exist_ok=True)
            details = {"home": str(home), "machine": str(machine)}
            workers.append(Worker(index, address=f"10.0.0.{index}", internal_ip="127.0.0.1", details=details))
        return Ready(Allocation(request.name, "shared", tuple(workers), storage=str(root / "output"), costs=False))

    @hookimpl
    def inspect():
        return MachineStatus("ready")

    @hookimpl
    def release():
        return Released()

    class Host(LocalHost):
        def environment(self):
            return {**super().environment(), "TPUX_MACHINE_DIR": self.worker.details["machine"]}

    @hookimpl
    def connect(worker, job):
        return Host(worker, {})
"""
CONFIG = """
tpu: {allocation_mode: shared}
command: {cmd: 'echo "worker $TPUX_WORKER"; echo "$TPUX_WORKER" >> ran'}
"""


@pytest.fixture
def shared(tpux):
    def install(machine):
        tpux.plugin("tpux-shared", PLUGIN.replace('"MACHINE"', machine), entries="shared = tpux_shared")
        return tpux

    return install


def test_the_command_runs_on_every_worker_of_a_shared_home(shared):
    tpux = shared('f"machine-{index}"')
    tpux("run", tpux.config(CONFIG))
    assert [tpux.output("000001", worker) for worker in (0, 1)] == [b"worker 0\n", b"worker 1\n"]
    ran = next(tpux.home.glob("jobs/*/000001/machines/home/ran"))
    assert sorted(ran.read_text().split()) == ["0", "1"]


@pytest.mark.system
def test_exec_and_a_second_attempt_on_a_shared_home(shared):
    tpux = shared('f"machine-{index}"')
    fails = CONFIG.replace(">> ran", ">> ran; exit 3")
    tpux("run", tpux.config("job: {rule: resume, max_restarts: {program: 1}}\n" + fails), code=100)
    assert tpux.output("000001", 1, attempt=2) == b"worker 1\n"
    done = tpux("exec", "1", "echo $TPUX_RUN_ID | grep -o 'w[01]/'")
    assert sorted(done.stdout.split("\n")) == ["", "[0] w0/", "[1] w1/"]


def test_one_machine_under_two_addresses_is_a_config_failure(shared):
    tpux = shared('"machine"')
    tpux("run", tpux.config(CONFIG), code=100)
    failure = tpux.show("1")["failure"]
    assert failure["kind"] == "config"
    assert "are the same machine" in failure["evidence"]
    assert {"10.0.0.0", "10.0.0.1"} <= set(failure["evidence"].replace("(", " ").replace(")", " ").split())
    assert tpux.events("000001", "attempt-started") == []
    tpux("resume", "1", code=None)  # an error if it has failed before the command ends
    tpux("wait", "1", code=100)

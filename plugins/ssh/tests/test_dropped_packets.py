"""A worker that no packet reaches any more, in the middle of a step: not refused, as by a machine, but silent."""

from __future__ import annotations

import pytest
from network_namespace import Namespace
from ssh_support import MakeServer

from tpux import Steps, hookimpl, sh
from tpux_testing.sandbox import Sandbox


class Waits:
    """A module whose set-up lasts until there is a file `go`."""

    @hookimpl
    def setup(self) -> Steps:
        yield sh("echo begin | tee -a ran; until [ -e go ]; do sleep 0.1; done; echo end | tee -a ran")


@pytest.mark.system
def test_a_worker_whose_packets_are_dropped_delays_no_other_and_its_step_runs_once(
    namespace: Namespace, make_server: MakeServer
) -> None:
    with Sandbox({"waits": Waits()}) as sandbox:
        servers = [make_server(), make_server(namespace.address, namespace=namespace.name)]
        addresses = [f"{server.address}:{server.port}" for server in servers]
        job = sandbox.start(
            {
                "tpu": {"allocation_mode": "hosts"},
                "hosts": addresses,
                "setup": {"modules": ["waits"]},
                "watch": {"lost_after": "1h"},
                "ssh": {"connect_timeout": 5},
                "command": {"cmd": "cat ran"},
            }
        )
        logs = job.controller.record.logs

        def has_logged(line: str, worker: int) -> bool:
            log = logs / f"waits_worker_{worker}.log"
            return log.exists() and f"\n{line}\n" in log.read_text()

        job.until(lambda _: has_logged("begin", 0) and has_logged("begin", 1))
        namespace.cut()
        for server in servers:
            (server.home / "go").touch()
        job.until(lambda _: has_logged("end", 0))
        assert not has_logged("end", 1)
        job.until(lambda _: 1 in job.controller.workers.unreachable)
        assert job.state.state == "setting-up"
        namespace.restore()
        job.until(lambda state: state.ended)
        assert job.state.state == "succeeded", job.state.why
        assert [job.output(worker) for worker in (0, 1)] == ["begin\nend\n"] * 2

"""Wrong allocators and transports are rejected, each with a message that says what is wrong."""

from __future__ import annotations

import os
import re
import time

import pytest

from tpux import (
    Allocation,
    Denied,
    Failure,
    HostUnreachableError,
    MachineStatus,
    Ready,
    Released,
    Result,
    TpuSection,
    Waiting,
    Worker,
    hookimpl,
)
from tpux.plugin import spec
from tpux.plugin.manager import Plugins
from tpux_testing import ContractError, allocator_contract, transport_contract, worker


class CloudSection(TpuSection):
    """Machines."""

    transport = "local"

    def count_workers(self):
        return 2


class WrongCount(CloudSection):
    def count_workers(self):
        return 3


class OtherTransport(CloudSection):
    transport = "ssh"


class Transferable(CloudSection):
    """What `Cloud` declares by mistake: it has no labels."""

    transferable = True


class Cloud:
    """An allocator of a cloud in memory: a request takes two calls. `flaw` says what is wrong about it."""

    def __init__(self, flaw: str = "", section: type[TpuSection] = CloudSection) -> None:
        self.flaw = flaw
        self.section = section
        self.machines: dict[str, int] = {}
        self.made = 0
        self.seen: set[str] = set()

    @hookimpl
    def tpu_section(self):
        return self.section

    @hookimpl
    def provision(self, request):
        name = request.name
        if self.flaw == "denied":
            return Denied(Failure("quota", evidence="0 of 0"))
        if self.flaw == "raises" and request.saved_state:
            raise KeyError("zone")
        if self.flaw == "environment":
            os.environ["CLOUD_ZONE"]
        if self.flaw == "not json":
            return Waiting("asked", 0, {"at": object()})
        if self.flaw == "blind" and not request.saved_state.get("made"):
            self.made += 1  # does not look for what a lost answer has created
            self.machines[f"{name}-{self.made}"] = self.made
            return Waiting("asked", 0, {"made": self.made})
        if self.flaw != "blind" and name not in self.machines:
            self.made += 1
            self.machines[name] = self.made
            return Waiting("asked", 0, {"made": self.made})
        number = time.monotonic_ns() if self.flaw == "changes" else 0
        slices = (0, 2) if self.flaw == "slices" else (0, 0)
        details = {"number": str(number)}
        workers = tuple(Worker(index, slice=slices[index], details=details) for index in (0, 1))
        return Ready(Allocation(name, "local", workers))

    @hookimpl
    def inspect(self, request):
        if self.flaw == "ready before" or any(name.startswith(request.name) for name in self.machines):
            others = [Worker(0)] if self.flaw == "other workers" and request.describe_workers else None
            return MachineStatus("waiting" if self.flaw == "never ready" else "ready", workers=others)
        return MachineStatus("ready" if self.flaw == "still ready" and self.made else "gone")

    @hookimpl
    def release(self, request):
        if self.flaw == "needs state" and not request.saved_state:
            return Released()
        if self.flaw == "only once" and request.name in self.seen:
            raise KeyError(request.name)
        mine = [name for name in self.machines if name.startswith(request.name)]
        if mine:
            self.seen.add(request.name)
        if self.flaw == "never":
            return Waiting("deleting", 0)
        for name in mine:
            if self.flaw != "leaves":
                del self.machines[name]
        return Released()


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("denied", "hook provision: it was denied: quota: 0 of 0"),
        ("raises", "plugin fake failed in provision: KeyError: 'zone'"),
        ("not json", "plugin fake gave a wrong answer from provision: saved_state['at']: expected JSON data"),
        (
            "blind",
            "after a crash that lost the answer of step 1, 2 machine(s) exist instead of 1; provision is idempotent",
        ),
        (
            "changes",
            "called again when the machines were ready, it gave other ones: workers[0].details.number is ",
        ),
        ("slices", "hook provision: there are 1 slice(s), and the workers are in slices [0, 2]"),
        ("ready before", "hook inspect: it says 'ready' before anything was requested"),
        ("never ready", "hook inspect: it says 'waiting' of machines that are ready"),
        ("other workers", "hook inspect: it describes the workers [0], and the machines have [0, 1]"),
        ("still ready", "hook inspect: it says 'ready' of machines that were released"),
        ("needs state", "lost the answer of step 1, it says Released, but 1 machine(s) still exist"),
        ("only once", "plugin fake failed in release: KeyError"),
        ("never", "hook release: not released after 1 s before anything was requested: deleting"),
        ("leaves", "hook release: called when the machines were ready, it says Released, but 1 machine(s) still exist"),
    ],
)
def test_wrong_allocators(flaw, message):
    cloud = Cloud(flaw)
    with pytest.raises(ContractError) as error:
        allocator_contract("fake", plugin=cloud, existing=lambda: list(cloud.machines), timeout=1)
    assert str(error.value).startswith("plugin fake")
    assert message in str(error.value)


def test_an_allocator_that_reads_the_environment_of_the_shell(monkeypatch):
    monkeypatch.setenv("CLOUD_ZONE", "z")
    cloud = Cloud("environment")
    with pytest.raises(
        ContractError, match=r"in another environment than that of the shell .*: KeyError: 'CLOUD_ZONE'"
    ):
        allocator_contract("fake", plugin=cloud, existing=lambda: list(cloud.machines))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (WrongCount, "hook tpu_section: count_workers() says 3, and provision gave 2 worker(s)"),
        (Transferable, "hook inspect: after they were taken over, it says 'ready' to the job that had them"),
        (OtherTransport, "the section declares transport 'ssh', and the machines need 'local'"),
    ],
)
def test_wrong_declarations(section, message):
    cloud = Cloud(section=section)
    with pytest.raises(ContractError) as error:
        allocator_contract("fake", plugin=cloud, existing=lambda: list(cloud.machines))
    assert message in str(error.value)


def test_a_right_allocator():
    cloud = Cloud()
    allocator_contract("fake", plugin=cloud, existing=lambda: list(cloud.machines))
    assert not cloud.machines
    assert cloud.made > 5


# --- transports ---------------------------------------------------------------------------------


class Host:
    """A connection to a local worker; `flaw` says what is wrong about it."""

    def __init__(self, host, flaw):
        self.worker = host.worker
        self.host = host
        self.flaw = flaw

    def run(self, script, *, stdin=b"", timeout=60.0):
        if self.flaw == "root":
            script = f"cd /; {script}"
        if self.flaw == "pipe":
            script = f"({script}) 2>&1 | cat"
        if self.flaw == "timeout":
            timeout = min(timeout, 60)
            try:
                return self.host.run(script, stdin=stdin, timeout=timeout)
            except HostUnreachableError:
                return Result(124)
        if self.flaw == "text":
            result = self.host.run(script, stdin=stdin, timeout=timeout)
            return Result(result.code, result.output.replace(b"\r\n", b"\n"))
        if self.flaw == "no stdin":
            stdin = b""
        if self.flaw == "raises":
            raise KeyError("session")
        if self.flaw == "result":
            return 0, b""
        return self.host.run(script, stdin=stdin, timeout=timeout)

    def follow(self, script, listen, *, stdin=b"", timeout=60.0):
        if self.flaw == "buffers":
            result = self.host.run(script, stdin=stdin, timeout=timeout)
            listen(result.output)
            return result.code
        return self.host.follow(script, listen, stdin=stdin, timeout=timeout)

    def put(self, source, remote, mode=0o600):
        if self.flaw == "mode":
            mode = 0o644
        if self.flaw == "temporary":
            self.host.put(b"", f"{remote}.tmp")
        self.host.put(source, remote, mode)

    def get(self, remote, local):
        self.host.get(remote, local)
        if self.flaw == "get":
            local.write_bytes(local.read_bytes()[:-1])

    def read(self, *pieces):
        if self.flaw == "offset":
            pieces = [(path, 0) for path, _ in pieces]
        found = self.host.read(*pieces)
        return [piece or b"" for piece in found] if self.flaw == "none" else found

    def close(self):
        if self.flaw == "close":
            self.flaw = "raises on close"
        elif self.flaw == "raises on close":
            raise ValueError("closed")
        self.host.close()


class Transport:
    def __init__(self, flaw=""):
        self.flaw = flaw

    @hookimpl
    def connect(self, worker, job):
        if self.flaw == "os error" and worker.address == "nowhere":
            raise ConnectionResetError("reset")
        host = Plugins().call_one("local", spec.connect, worker=worker, job=job)
        return host.run if self.flaw == "no method" else Host(host, self.flaw)


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("root", "Host.run: the working directory is not the home directory"),
        ("pipe", "Host.run: the exit code of a script that fails: expected 3, got 0"),
        ("timeout", "Host.run: a script that exceeds its timeout: expected 'HostUnreachableError', got 'a result'"),
        ("text", "Host.run: nothing is changed in the output"),
        ("no stdin", "Host.run: stdin and output are bytes, unchanged: expected 262144 bytes, got b''"),
        ("raises", "failed in connect: KeyError: 'session'"),
        ("result", "gave a wrong answer from Host.run: expected Result, got (0, b''"),
        ("buffers", "Host.follow: output is passed on before the script ends (9: it was not): expected 5, got 9"),
        ("mode", "Host.put: number of files (no temporary one remains), and the mode: expected ['1', '640']"),
        ("temporary", "Host.put: number of files (no temporary one remains)"),
        ("get", "Host.get: a copied file"),
        ("offset", "Host.read: several files, from offsets"),
        ("none", "Host.read: a file that does not exist: expected [None], got [b'']"),
        ("close", "failed in connect: ValueError: closed"),
        ("no method", "gave a wrong answer from connect: expected Host, got "),
        ("os error", "a worker that does not exist must raise HostUnreachableError from connect or run; got "),
    ],
)
def test_wrong_transports(flaw, message, monkeypatch):
    monkeypatch.setattr("tpux_testing.transports._STREAMED", 0.3)
    nowhere = worker(address="nowhere", home="/nowhere/worker")
    with pytest.raises(ContractError) as error:
        transport_contract("fake", plugin=Transport(flaw), unreachable=nowhere)
    assert re.match("plugin fake(, hook connect:)? ", str(error.value))
    assert message in str(error.value)


def test_a_right_transport():
    transport_contract("fake", plugin=Transport(), unreachable=worker(home="/nowhere/worker"))

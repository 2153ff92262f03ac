"""A transport that connects through another one: what each is asked, and whose fault an error is."""

from __future__ import annotations

from pathlib import Path

import pytest

WIRE = """
from pathlib import Path
from tpux import Finding, Section, hookimpl
import tpux_local

HERE = Path(__file__).parent

class WireSection(Section):
    colour: str = "red"

def colour(job): return (job.section("wire", WireSection) or WireSection()).colour

class Host:
    def __init__(self, host): self._host, self.worker = host, host.worker
    def __getattr__(self, name):
        if (HERE / "broken").exists(): raise RuntimeError("no signal")
        return getattr(self._host, name)
    def close(self): pass

@hookimpl
def config_section(): return WireSection
@hookimpl
def resolve(): return {"pair": "twisted"}
@hookimpl
def preflight(job): return [Finding("warning", f"the wire is {colour(job)}")]
@hookimpl
def public_keys(): return ["key of the wire"]
@hookimpl
def connect(worker, job):
    assert job.resolved["wire"] == {"pair": "twisted"}
    return Host(tpux_local.connect(worker, job))
"""
TUNNEL = """
from dataclasses import replace
from pathlib import Path
from tpux import Section, TpuSection, hookimpl
from tpux.api.machines import connect_through
import tpux_local

HERE = Path(__file__).parent

class TunnelSection(Section):
    def connects_through(self): return "wire"

class TunnelTpuSection(TpuSection):
    transport = "tunnel"

class Host:
    def __init__(self, host): self._host, self.worker = host, host.worker
    def __getattr__(self, name): return getattr(self._host, name)
    def run(self, script, **options): return self._host.run("echo passed >> tunnel; " + script, **options)

@hookimpl
def config_section(): return TunnelSection
@hookimpl
def tpu_section(): return TunnelTpuSection
@hookimpl
def provision(request):
    (HERE / "keys").write_text(" ".join(request.public_keys))
    answer = tpux_local.provision(request)
    return replace(answer, allocation=replace(answer.allocation, transport="tunnel"))
@hookimpl
def inspect(request): return tpux_local.inspect(request)
@hookimpl
def release(request): return tpux_local.release(request)
@hookimpl
def connect(worker, job): return Host(connect_through("wire", worker, job))
"""
CONFIG = "tpu: {allocation_mode: tunnel}\nwatch: {lost_after: 1s, poll_every: 0.2s}\n"


def install(tpux, wire: str = WIRE, tunnel: str = TUNNEL) -> Path:
    """Install both plugins. Return their directory."""
    tpux.plugin("tpux-wire", wire, entries="wire = tpux_wire")
    return tpux.plugin("tpux-tunnel", tunnel, entries="tunnel = tpux_tunnel").parent


def test_the_wrapped_transport_is_asked_for_its_part(tpux):
    place = install(tpux)
    done = tpux("run", "-d", tpux.config(CONFIG + "command: {cmd: cat tunnel; exit 3}\nwire: {colour: blue}\n"))
    assert "warning: the wire is blue" in done.stderr
    tpux("wait", "1", code=100)
    assert b"passed\n" in tpux.output("000001")
    assert tpux.show("1")["resolved"]["wire"] == {"pair": "twisted"}
    assert (place / "keys").read_text() == "key of the wire"
    assert "passed" in tpux("exec", "1", "cat tunnel").stdout
    again = tpux("create", tpux.config(CONFIG + "command: {cmd: 'true'}\n"))
    assert "warning: the wire is red" in again.stderr


def test_an_error_of_the_wrapped_transport_names_it_and_ends_no_attempt(tpux):
    place = install(tpux)
    job = tpux.create(CONFIG + f"command: {{cmd: 'echo on; until [ -e {place}/go ]; do sleep 0.1; done'}}\n")
    tpux.until(lambda: tpux.output_so_far(job) == b"on\n")
    (place / "broken").touch()
    message = "plugin wire (tpux-wire 1.0) failed in connect: RuntimeError: no signal; retrying"
    tpux.until(lambda: message in str(tpux.show(job)["why"]))
    (place / "broken").unlink()
    (place / "go").touch()
    tpux("wait", job)
    assert len(tpux.events(job, "attempt-started")) == 1


@pytest.mark.parametrize(
    ("wire", "tunnel", "message"),
    [
        (
            WIRE + "    return 3\n@hookimpl\ndef connect(): return 'host'\n",
            TUNNEL,
            "plugin wire (tpux-wire 1.0) gave a wrong answer from connect: expected Host, got 'host'",
        ),
        (WIRE + "@hookimpl\ndef connect(): 1 / 0\n", TUNNEL, "plugin wire (tpux-wire 1.0) failed in connect: Zero"),
        (
            WIRE,
            TUNNEL.replace('connects_through(self): return "wire"', "other(self): pass"),
            "plugin tunnel connects through wire, and does not declare it",
        ),
        (
            WIRE,
            TUNNEL.replace('"wire"', '"tunnel"'),
            "the transport tunnel connects through itself: tunnel -> tunnel",
        ),
    ],
)
def test_wrong_transports_are_named(tpux, wire, tunnel, message):
    tpux.env["TPUX_CLOCK_RATE"] = "50"
    install(tpux, wire, tunnel)
    job = tpux.create(CONFIG + "command: {cmd: 'true'}\n")
    tpux.until(lambda: message in str(tpux.show(job)["why"]), f"for {message}")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("1 / 0", "plugin tunnel failed in connects_through() of its section: ZeroDivisionError"),
        ("5", "plugin tunnel gave a wrong answer from connects_through() of its section: expected str or None, got 5"),
        ("'wrie'", "no plugin 'wrie' is installed"),
    ],
)
def test_a_wrong_declaration_is_refused_before_a_job_exists(tpux, answer, message):
    install(tpux, tunnel=TUNNEL.replace('"wire"', answer, 1))
    done = tpux("create", tpux.config(CONFIG + "command: {cmd: 'true'}\n"), code=None)
    assert done.returncode in {1, 2}
    assert message in done.stderr
    assert tpux.json("list") == []

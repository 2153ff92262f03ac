"""tpux beside tools of others, on emulated TPU VMs: from nothing to the first line, from a preemption to running again.

`make bench-peers` installs the tools, each into its own environment, and runs this in a network namespace without a way
out. Each tool is used as its own page says. One that can only speak to Google's address is started by a few lines of
Python that put the emulator's in its place (`LAUNCHERS`).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.emulated import USER, ZONE, unavailable
from benchmarks.measure import Row
from benchmarks.sandbox import TPUX, Sandbox, temporary_sandbox
from tpux_emulator.emulator import Emulator

ROUNDS = 3
WITHIN = 120.0
"""Seconds after which a tool counts as one that never does it."""
ENVIRONMENTS = Path(__file__).parent.parent / ".cache" / "peers"
NAME = "peer"
PROGRAM = "echo here $(date +%s.%N); exec sleep 3600"
_LINE = re.compile(r"\bhere (\d+\.\d+)")

LAUNCHERS = {
    "tpunicorn2": """
import os
from google.auth.credentials import AnonymousCredentials
from tpunicorn import api, cli
api.API_ROOT = os.environ["TPUX_GCP_ENDPOINT"] + "/v2"
api._default_credentials = AnonymousCredentials
cli.main(prog_name="pu")
""",
}
JOB = """
job: {{name: {name}, env_type: {environment}}}
tpu: {{allocation_mode: tpu-vm, accelerator: v4-8, pricing: spot, zone: {zone}, project: emulated, endpoint: "{url}"}}
ssh: {{port: {port}}}
command: {{cmd: '{program}', grace_period: 1s}}
"""


@dataclass(frozen=True)
class Tool:
    """A tool, and how its page says that a command is run.

    Attributes:
        name: with its version.
        run: the shell command from nothing to the program's first line.
        watch: the command that then brings the program back; empty if `run` does.
        note: what is to know about the figures.
    """

    name: str
    run: str
    watch: str = ""
    note: str = ""


@dataclass
class Times:
    """The seconds that a tool took, in each round; None if it did not succeed in time."""

    first: list[float | None] = field(default_factory=list)
    again: list[float | None] = field(default_factory=list)
    output: str = ""


def rows() -> list[Row]:
    """Measure each tool that can run here, in turn, several rounds."""
    if reason := unavailable() or _lacking():
        return [Row("tpux beside other tools", f"not measured: {reason}")]
    with temporary_sandbox() as sandbox, Emulator(sandbox.directory / "emulator", clock_rate=1) as cloud:
        if cloud.ssh_port != 22:
            return [Row("tpux beside other tools", "not measured: port 22 is in use, and gcloud supports no other")]
        _prepare(sandbox, cloud)
        tools = _tools(sandbox, cloud)
        times = {tool.name: Times() for tool in tools}
        for _ in range(ROUNDS):
            for tool in tools:
                _measure(tool, sandbox, cloud, times[tool.name])
        return [row for tool in tools for row in _rows(tool, times[tool.name])] + [
            Row(f"{name}: not measured", reason) for name, reason in _not_here().items()
        ]


def _lacking() -> str:
    if shutil.which("gcloud") is None:
        return "gcloud is not installed"
    return "" if ENVIRONMENTS.is_dir() else "run `make bench-peers`, which installs the tools"


def _not_here() -> dict[str, str]:
    """Return why a tool cannot run here."""
    found = [f"{each}, with which it {what}" for each, what in SPOTAX_NEEDS.items() if shutil.which(each) is None]
    lacking = f"; this machine also lacks {' and '.join(found)}" if found else ""
    return {
        "spotax 0.1.0": "each run first makes a bucket in Cloud Storage, and then downloads uv from astral.sh to the "
        f"worker; the emulator has neither{lacking}"
    }


SPOTAX_NEEDS = {"rsync": "uploads the code"}


def _prepare(sandbox: Sandbox, cloud: Emulator) -> None:
    """Set up the environment of all tools: the emulator's, a home with gcloud's key, and their launchers."""
    home = sandbox.directory / "user"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    key = home / ".ssh" / "google_compute_engine"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "3072", "-N", "", "-f", key], check=True)
    sandbox.env |= {"PYTHONPYCACHEPREFIX": str(sandbox.directory / "pycache"), "PYTHONDONTWRITEBYTECODE": ""}
    sandbox.env |= cloud.environment(zone=ZONE) | {"HOME": str(home), "CLOUDSDK_CONFIG": str(home / "gcloud")}
    sandbox.env |= {"USER": USER, "LOGNAME": USER, "PYTHONUNBUFFERED": "1"}  # whom gcloud logs in as
    for name, text in LAUNCHERS.items():
        (sandbox.directory / f"{name}.py").write_text(text)


def _tools(sandbox: Sandbox, cloud: Emulator) -> list[Tool]:
    pu = shlex.join([str(ENVIRONMENTS / "tpunicorn2/bin/python"), str(sandbox.directory / "tpunicorn2.py")])
    ssh = f"{pu} ssh {NAME} -y --zone {ZONE} --command {shlex.quote(PROGRAM)}"
    tpuz = str(ENVIRONMENTS / "tpuz/bin/tpuz")
    workdir = f"gcloud compute tpus tpu-vm ssh {NAME} --command 'mkdir -p workdir'"
    script = shlex.quote(f"bash -c {shlex.quote(PROGRAM)}")
    return [
        *(_tpux(sandbox, cloud, environment) for environment in ("null", "venv")),
        Tool(
            "tpunicorn2 1.0.2",
            f"{pu} create {NAME} -y --zone {ZONE} --accelerator-type v4-8 && {ssh}",
            f"{pu} babysit {NAME} --zone {ZONE} -c {shlex.quote(ssh)}",
            "`pu create`, `pu ssh`; `pu babysit`, which looks every 30 s",
        ),
        Tool(
            "tpuz 0.1.11",
            f"{tpuz} up {NAME} -a v4-8 && {workdir} && {tpuz} run {NAME} {script}; {tpuz} logs {NAME}",
            f"{tpuz} watch {NAME} {script}",
            "`tpuz up`, `run`, which waits for the program for 30 s and then fails, `logs`; without `setup`, which "
            "downloads JAX; `tpuz watch`, which looks every 60 s, and then begins with `setup`",
        ),
    ]


def _tpux(sandbox: Sandbox, cloud: Emulator, environment: str) -> Tool:
    config = sandbox.directory / f"{environment}.yaml"
    text = JOB.format(
        name=NAME, environment=environment, zone=ZONE, url=cloud.url, port=cloud.ssh_port, program=PROGRAM
    )
    config.write_text(text)
    with_venv = " with an empty venv" if environment == "venv" else ""
    return Tool(f"tpux{with_venv}", f"{TPUX} run {config}", note="`tpux run`")


def _measure(tool: Tool, sandbox: Sandbox, cloud: Emulator, times: Times) -> None:
    """Run a tool from nothing, preempt its TPU, and note how long both took."""
    output = sandbox.directory / "output"
    output.write_text("")
    began = time.time()
    try:
        with _running(tool.run, output, sandbox.env):
            times.first.append(None if (at := _lines(output, 1)) is None else at - began)
            if times.first[-1] is not None:
                with _running(tool.watch, output, sandbox.env):
                    time.sleep(3.0)  # so that a watcher has begun to watch
                    (node,) = _names(cloud, "nodes")
                    began = time.time()
                    cloud.preempt(node, notice=0)
                    times.again.append(None if _lines(output, 2) is None else _started(output)[1] - began)
    finally:
        times.output = output.read_text()[-2000:]
        if tool.run.startswith(str(TPUX)):
            subprocess.run([TPUX, "delete", "--name", NAME, "--yes"], env=sandbox.env, check=True, capture_output=True)
        _delete_all(cloud, sandbox.env)


@contextmanager
def _running(command: str, output: Path, env: dict[str, str]) -> Iterator[None]:
    """Run a shell command in a group of its own, which is killed at the end, with its output in a file."""
    if not command:
        yield
        return
    with output.open("ab") as file:
        process = subprocess.Popen(
            ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _lines(output: Path, count: int) -> float | None:
    """Wait until the program's line has appeared so many times; return when that was seen, None if it was not."""
    deadline = time.time() + WITHIN
    while time.time() < deadline:
        if len(_started(output)) >= count:
            return time.time()
        time.sleep(0.02)
    return None


def _started(output: Path) -> list[float]:
    """Return when the program has started, as it has printed it; each start counts once."""
    return sorted(set(map(float, _LINE.findall(output.read_text(errors="replace")))))


def _names(cloud: Emulator, kind: str) -> list[str]:
    found = cloud.status()[kind]
    assert isinstance(found, list)
    return [str(each["name"]).rpartition("/")[2] for each in found if isinstance(each, dict)]


def _delete_all(cloud: Emulator, env: dict[str, str]) -> None:
    for node in _names(cloud, "nodes"):
        subprocess.run(
            ["gcloud", "compute", "tpus", "tpu-vm", "delete", node, "--quiet"],
            env=env, check=False, capture_output=True,
        )  # fmt: skip
    while _names(cloud, "nodes"):
        time.sleep(0.1)


def _rows(tool: Tool, times: Times) -> list[Row]:
    if None in times.first:
        print(times.output)
    return [
        Row(f"{tool.name}: from nothing to the first line of output", f"{_seconds(times.first)} ({tool.note})"),
        Row(f"{tool.name}: from a preemption until the command runs again", _seconds(times.again)),
    ]


def _seconds(taken: Sequence[float | None]) -> str:
    done = [each for each in taken if each is not None]
    if not done:
        return f"not within {WITHIN:.0f} s, {len(taken)} rounds"
    missed = f", {len(taken) - len(done)} not within {WITHIN:.0f} s" if len(done) < len(taken) else ""
    return f"{median(done):.1f} s ({min(done):.1f} to {max(done):.1f}, {len(taken)} rounds{missed})"

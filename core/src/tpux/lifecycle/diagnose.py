"""Examine a job and its workers, for `tpux diagnose`: without the job's lock, and outside of its supervisor."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle.check import check_job, run_steps_once
from tpux.lifecycle.connection import JobConnection
from tpux.lifecycle.open import build_request
from tpux.model.failures import Finding
from tpux.model.host import Host
from tpux.model.job import Command
from tpux.model.machines import Worker
from tpux.model.steps import Result, Step
from tpux.plugin import spec
from tpux.remote import job_runs, process
from tpux.remote.facts import WorkerFacts, read_facts
from tpux.remote.job_runs import DIAGNOSIS
from tpux.remote.tasks import describe_failure

JAX_TIMEOUT = 120.0
"""Seconds for `jax.devices()`, which waits for the other workers of a slice."""
_JAX_HINT = "see what holds the devices above; the program must be started on all workers of a slice"
_JAX = """
python=$(command -v python3 || command -v python) || { echo 'tpux-jax {}'; exit 0; }
# It holds the TPU, and who asked may have been interrupted: soon after JAX_TIMEOUT it ends by itself.
if command -v timeout >/dev/null; then set -- timeout -k 5 130; fi
exec "$@" "$python" - <<'end'
import json, sys
found = {"python": sys.executable + " " + sys.version.split()[0]}
try:
    import jax
except ImportError:
    pass
else:
    found["jax"] = jax.__version__
    try:
        devices, local = jax.devices(), jax.local_devices()
        found["devices"] = "%d devices (%s), %d of this worker" % (len(devices), devices[0].platform, len(local))
    except Exception as error:
        found["error"] = (type(error).__name__ + ": " + str(error)).split(chr(10))[0]
print("tpux-jax " + json.dumps(found))
end
"""
POLL_EVERY = 0.25
"""Seconds between two polls of `jax.devices()`."""


@dataclass(frozen=True)
class Examined:
    """A finding about a job's machines (`worker` is None), or about one of its workers."""

    worker: int | None
    finding: Finding


# --- diagnose -----------------------------------------------------------------------------------


def diagnose_machines(connection: JobConnection, workers: Sequence[Worker]) -> list[Examined]:
    """Return what the allocator, the workers and the plugins say, each finding with its remedy.

    Args:
        connection: the job's machines.
        workers: which workers are examined, in parallel. One that does not answer is a finding.
    """
    found = [Examined(None, _machines(connection))]
    token, reachable = secrets.token_hex(4), list[Worker]()
    for index, answer in connection.each(workers, lambda host: _examine(connection, host, token)).items():
        if isinstance(answer, TpuxError):
            unreachable = isinstance(answer, HostUnreachableError)
            message = ("it does not answer: " if unreachable else "") + answer.message
            hint = answer.hint or f"try a command there: tpux exec {connection.name} --worker {index} uptime"
            found.append(Examined(index, Finding("error", message, hint=hint)))
            continue
        reachable.append(connection.worker(index))
        found += [Examined(index, finding) for finding in answer]
    modules = [] if connection.machines else connection.job.modules
    for verdict in check_job(connection, reachable, modules):
        hint = "" if verdict.ready else f"tpux setup {connection.name}"
        if hint and connection.state.state == "setting-up":
            hint = f"it is being set up: tpux logs {connection.name} --module {verdict.module}"
        level: Literal["ok", "warning"] = "ok" if verdict.ready else "warning"
        found.append(Examined(verdict.worker, Finding(level, f"module {verdict.module}: {verdict.text}", hint=hint)))
    return found


def _machines(connection: JobConnection) -> Finding:
    job, allocation = connection.job, connection.allocation
    what = f"{allocation.name}, {len(allocation.workers)} worker(s), zone {allocation.zone or '-'}"
    if connection.machines:  # they were just found
        return Finding("ok", what)
    try:
        request = build_request(job, connection.state)
        status = connection.plugins.call_one(job.tpu.allocation_mode, spec.inspect, request=request)
    except TpuxError as error:
        hint = error.hint or f"ask again later: tpux diagnose {connection.name}"
        return Finding("warning", f"{what}: their state is unknown: {error.message}", hint=hint)
    if status is None:
        return Finding("note", what)
    details = "".join(f", {name} {value}" for name, value in status.details.items())
    message = f"{what}: {status.state}" + (f" ({status.evidence})" if status.evidence else "") + details
    if status.state == "ready":
        return Finding("ok", message)
    if status.state == "unknown":
        return Finding("warning", message, hint=f"ask again later: tpux diagnose {connection.name}")
    hint = f"request new ones: tpux stop {connection.name} --release, then tpux resume {connection.name}"
    return Finding("error", message, hint=hint)


def _examine(connection: JobConnection, host: Host, token: str) -> list[Finding]:
    paths = [".", "/tmp"]  # noqa: S108  (examined, not written to)
    if connection.state.run.output_dir.startswith("/"):
        paths.append(connection.state.run.output_dir)
    facts, by_plugins = read_facts(host, paths, mounts=True), list[Finding]()
    for name, steps in connection.plugins.call_each(
        connection.job, spec.diagnose, job=connection.job, config=None, worker=host.worker
    ):
        by_plugins += _ask_plugin(connection, host, f"{DIAGNOSIS}{token}-{name}", name, steps)
    known = {finding.where for finding in by_plugins}  # its plugin knows better how a mount is repaired
    others = tuple(mount for mount in facts.mounts if mount.at not in known)
    repair = "" if connection.machines else f"; then tpux setup {connection.name}"
    found = [*describe_facts(replace(facts, mounts=others), connection.name, repair), *by_plugins]
    if connection.state.ended or connection.machines:
        found += _ask_jax(connection, host, f"{DIAGNOSIS}{token}-jax")
    if connection.machines:  # no job removes these runs
        job_runs.remove(host, process.worker_key(connection.job.key, host.worker.index))
    return found


def describe_facts(facts: WorkerFacts, name: str, repair: str) -> list[Finding]:
    """Return what the state of a worker means.

    Args:
        facts: its state.
        name: the job, or the machines without a job, as commands take it.
        repair: what mounts again what was unmounted, as the end of a hint.
    """
    short = {shortage.resource for shortage in facts.shortages()}
    hint = f"see what uses it: tpux exec {name} -- ps aux --sort=-rss" if "memory" in short else ""
    found = [Finding("warning" if hint else "ok", facts.describe_memory(), hint=hint)]
    for disk in facts.disks:
        full = f"disk {disk.at}" in short
        hint = f"see what takes the space: tpux exec {name} -- du -xhd1 {shlex.quote(disk.at)}" if full else ""
        found.append(Finding("warning" if full else "ok", disk.describe(), hint=hint))
    for mount in facts.mounts:
        text = f"mount {mount.at} ({mount.type}): {mount.problem or 'it answers'}"
        unmount = "fusermount -uz" if mount.is_fuse else "sudo umount -l"
        remedy = f"unmount it: tpux exec {name} -- {unmount} {shlex.quote(mount.at)}{repair}"
        hint = remedy if mount.problem else ""
        found.append(Finding("error" if mount.problem else "ok", text, hint=hint))
    return found


def _ask_plugin(
    connection: JobConnection,
    host: Host,
    run: str,
    name: str,
    steps: Generator[Step, Result, Sequence[Finding] | None] | TpuxError,
) -> list[Finding]:
    """Return what a plugin's `diagnose` found; a plugin or step that fails is a finding.

    Args:
        connection: the job and its workers.
        host: a connection to the worker that is examined.
        run: the name of the run on the worker.
        name: the plugin.
        steps: what its `diagnose` has returned, or why it did not.
    """
    try:
        if isinstance(steps, TpuxError):
            raise steps
        answer = list[Finding]()

        def kept() -> Generator[Step, Result, None]:
            answer.extend((yield from steps) or [])

        runner, _ = run_steps_once(connection, host, kept(), run)
    except HostUnreachableError:
        raise
    except TpuxError as error:
        return [Finding("warning", f"{name}: {error.message}", hint=error.hint or f"tpux plugins show {name}")]
    if runner.failed:
        hint = f"try it there: tpux exec {connection.name} --worker {host.worker.index} COMMAND"
        return [Finding("warning", f"{name} could not examine it: {describe_failure(*runner.failed)}", hint=hint)]
    return answer


def _ask_jax(connection: JobConnection, host: Host, name: str) -> list[Finding]:
    """Return which devices JAX finds in the job's environment; nothing if Python is not installed there."""
    job = connection.job
    run = process.RemoteProcess(process.worker_key(job.key, host.worker.index), job.attempt + 1, name)
    given = {key: value for key, value in job.command.env.items() if "${" not in value}  # no secrets are sent
    command = Command(argv=("sh", run.script), script=run.script, env=given)
    try:
        if job.environment:
            config, worker = job.sections.get(job.environment), host.worker
            answer = connection.plugins.call_one(
                job.environment, spec.run, job=job, command=command, config=config, worker=worker
            )
            command = answer or command
        output = _run_to_end(host, run, command)
        found = json.loads(output.partition(b"tpux-jax ")[2].partition(b"\n")[0])
    except HostUnreachableError:
        raise
    except (TpuxError, ValueError) as error:
        hint = f"try it there: tpux exec {connection.name} --worker {host.worker.index} COMMAND"
        return [Finding("warning", f"jax.devices() could not be tried: {error}", hint=hint)]
    findings = [Finding("ok", f"environment {job.environment or 'none'}: {found['python']}")] if found else []
    if "error" in found:
        findings.append(Finding("error", f"jax {found['jax']}: jax.devices() failed: {found['error']}", hint=_JAX_HINT))
    elif "jax" in found:
        findings.append(Finding("ok", f"jax {found['jax']}: {found['devices']}"))
    return findings


def _run_to_end(host: Host, run: process.RemoteProcess, command: Command) -> bytes:
    """Run the script that asks JAX, and return its output.

    Raises:
        TpuxError: it took longer than `JAX_TIMEOUT`.
    """
    status, deadline = process.start(host, run, _JAX, command), time.monotonic() + JAX_TIMEOUT
    output = status.output
    while status.phase == "running" or status.more:
        if time.monotonic() > deadline:
            process.stop(host, run, signal="KILL", reason="it took too long")
            raise TpuxError(f"no answer within {JAX_TIMEOUT:.0f} s", hint=_JAX_HINT)
        time.sleep(POLL_EVERY)
        status = process.poll(host, run, len(output))
        output += status.output
    return output

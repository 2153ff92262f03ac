"""Examine a job and its workers, for `tpux diagnose`: without the job's lock, and outside of its supervisor."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tpux import Finding, HostUnreachableError, TpuxError, Worker
from tpux.api import JobConnection, run_steps
from tpux.api.machines import OpenHost
from tpux.api.steps import ModuleStatus, check_modules, run_in_environment
from tpux_doctor.facts import WorkerFacts, facts_step, parse_facts

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
            hint = answer.hint or f"try a command there: tpux exec {connection.name} --host --worker {index} uptime"
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
    allocation = connection.allocation
    what = f"{allocation.name}, {len(allocation.workers)} worker(s), zone {allocation.zone or '-'}"
    if connection.machines:  # they were just found
        return Finding("ok", what)
    try:
        status = connection.inspect()
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


def _examine(connection: JobConnection, host: OpenHost, token: str) -> list[Finding]:
    paths = [".", "/tmp"]  # noqa: S108  (examined, not written to)
    if connection.state.run.output_dir.startswith("/"):
        paths.append(connection.state.run.output_dir)
    facts = parse_facts(host.run(facts_step(paths, mounts=True).script, timeout=90.0).output)
    by_plugins = list[Finding]()
    for name, steps in connection.diagnoses(host.worker):
        try:
            if isinstance(steps, TpuxError):
                raise steps
            ended = run_steps(connection, host, steps, f"diagnose-{token}-{name}")
        except HostUnreachableError:
            raise
        except TpuxError as error:
            hint = error.hint or f"tpux plugins show {name}"
            by_plugins.append(Finding("warning", f"{name}: {error.message}", hint=hint))
            continue
        by_plugins += ended.value or []
        if ended.problem:
            message = f"{name} could not examine it: {ended.problem}"
            by_plugins.append(Finding("warning", message, hint=_try_there(connection, host)))
    known = {finding.where for finding in by_plugins}  # its plugin knows better how a mount is repaired
    others = tuple(mount for mount in facts.mounts if mount.at not in known)
    repair = "" if connection.machines else f"; then tpux setup {connection.name}"
    found = [*describe_facts(replace(facts, mounts=others), connection.name, repair), *by_plugins]
    if connection.state.ended or connection.machines:
        found += _ask_jax(connection, host, f"diagnose-{token}-jax")
    return found


def _try_there(connection: JobConnection, host: OpenHost) -> str:
    return f"try it there: tpux exec {connection.name} --worker {host.worker.index} COMMAND"


def describe_facts(facts: WorkerFacts, name: str, repair: str) -> list[Finding]:
    """Return what the state of a worker means.

    Args:
        facts: its state.
        name: the job, or the machines without a job, as commands take it.
        repair: what mounts again what was unmounted, as the end of a hint.
    """
    found = list[Finding]()
    for resource in facts.resources():
        hint = ""
        if resource.level == "warning" and resource.where == "memory":
            hint = f"see what uses it: tpux exec {name} --host -- ps aux --sort=-rss"
        elif resource.level == "warning":
            at = shlex.quote(resource.where.removeprefix("disk "))
            hint = f"see what takes the space: tpux exec {name} --host -- du -xhd1 {at}"
        found.append(Finding("warning" if hint else "ok", resource.message, hint=hint))
    for mount in facts.mounts:
        text = f"mount {mount.at} ({mount.type}): {mount.problem or 'it answers'}"
        unmount = "fusermount -uz" if mount.is_fuse else "sudo umount -l"
        remedy = f"unmount it: tpux exec {name} --host -- {unmount} {shlex.quote(mount.at)}{repair}"
        hint = remedy if mount.problem else ""
        found.append(Finding("error" if mount.problem else "ok", text, hint=hint))
    return found


def _ask_jax(connection: JobConnection, host: OpenHost, name: str) -> list[Finding]:
    """Return which devices JAX finds in the job's environment; nothing if Python is not installed there."""
    job = connection.job
    try:
        output = run_in_environment(connection, host, _JAX, name, JAX_TIMEOUT)
        found = json.loads(output.partition(b"tpux-jax ")[2].partition(b"\n")[0])
    except HostUnreachableError:
        raise
    except (TpuxError, TimeoutError, ValueError) as error:
        hint = _JAX_HINT if isinstance(error, TimeoutError) else _try_there(connection, host)
        return [Finding("warning", f"jax.devices() could not be tried: {error}", hint=hint)]
    findings = [Finding("ok", f"environment {job.environment or 'none'}: {found['python']}")] if found else []
    if "error" in found:
        findings.append(Finding("error", f"jax {found['jax']}: jax.devices() failed: {found['error']}", hint=_JAX_HINT))
    elif "jax" in found:
        findings.append(Finding("ok", f"jax {found['jax']}: {found['devices']}"))
    return findings


# --- check --------------------------------------------------------------------------------------


def check_job(connection: JobConnection, workers: Sequence[Worker], modules: Sequence[str]) -> list[ModuleStatus]:
    """Check each module on each worker, the workers in parallel. An unreachable worker is not ready.

    Args:
        connection: the job's machines.
        workers: which workers.
        modules: which of the job's modules.
    """
    answers = connection.each(workers, lambda host: check_modules(connection, host, modules))
    return [
        status
        for index, answer in answers.items()
        for status in (
            [ModuleStatus(index, name, ready=False, why=answer.message) for name in modules]
            if isinstance(answer, TpuxError)
            else answer
        )
    ]

"""Allocator `slurm`: a Slurm job holds the nodes, found again by its name and the token in its comment."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tpux import (
    Allocation,
    Denied,
    Failure,
    MachineStatus,
    ProvisionRequest,
    Ready,
    Released,
    TpuxError,
    Waiting,
    Worker,
)
from tpux_slurm import commands
from tpux_slurm.scripts import CHECK, NOTICE, PATH, batch_script, step
from tpux_slurm.section import SlurmTpuSection
from tpux_slurm.states import (
    ENDED_BY_SOMEONE,
    LOST_NODES,
    NODE_LIMIT,
    STATES,
    UNKNOWN_JOB,
    SlurmJob,
    fields_of,
    in_words,
    why_never,
)

_FORMAT = "%i|%T|%r|%N|%S|%k"
_COMPLETING_TIMEOUT = 15.0
"""Seconds to wait for the final state of a job that is ending."""
_KEEPER_TIMEOUT = 5.0
"""Seconds within which keepers end by themselves and remove their directories, before the job is cancelled."""
_PORTS = (20000, 10000)
"""The first port for coordinators of jax.distributed, and how many there are: jobs may share a node."""
_SUBMITTING = "sbatch of an earlier supervisor is still submitting the job"
_DENIED = "denied"
"""A file with the cancellation that the last answer of `provision` was about."""
_SENT = "sent"
"""A file that is there while an sbatch was not answered; with content, and the time, once that sbatch has ended."""
_UNANSWERED_FOR = 120.0
"""Seconds for which the controller may still run a submission that it has not answered."""
_A_LIMIT = "job submit limit"
_FINAL = re.compile(
    r"invalid|not permitted|permission denied|unrecognized|ambiguous|requires an argument|can ?not be satisfied|exceeds"
    r"|node configuration is not available|more processors requested|memory required by task|dos line breaks"
    r"|job dependency problem|no partition specified|access denied|unsupported|request not supported"
    r"|not in this partition|needs to be provided|too long|duplicate generic",
    re.IGNORECASE,
)
"""What sbatch says of a job that it will never accept. Anything else may be a state of the cluster, which passes."""


def provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    """Submit a job unless there is one, and wait until a keeper runs on each of its nodes."""
    try:
        return _provision(request, _section(request))
    except commands.SlurmError as error:
        return Waiting(error.message, 5.0, hint=error.hint)


def _provision(request: ProvisionRequest, tpu: SlurmTpuSection) -> Ready | Waiting | Denied:
    if not request.interrupted:
        _file(request, _DENIED).unlink(missing_ok=True)  # the answer with it was stored
    if (denied := _cancelled(request)) is not None:
        return denied
    with _submission(request) as is_free:
        if not is_free:
            return Waiting(_SUBMITTING, 1.0)
        if not (jobs := _jobs(request)):
            return _ended(request) or _unanswered(request) or _submit(request, tpu)
        _file(request, _SENT).unlink(missing_ok=True)
        first, *others = jobs
        if others:
            commands.checked(request.resolved, ["scancel", *(job.id for job in others)])
    if first.state in {"PENDING", "CONFIGURING"}:
        if (hint := why_never(first.reason)) and not _may_fit_later(request, tpu, first):
            return Denied(Failure("config", evidence=f"Slurm job {first.id}: {first.reason}", hint=hint))
        start = f"; estimated start {first.start}" if first.start not in {"N/A", ""} else ""
        hint = f"scontrol release {first.id}" if first.reason == "JobHeldUser" else ""
        why = f"Slurm job {first.id} is {first.state}: {in_words(first.reason)}{start}"
        return Waiting(why, 2.0, {"job": first.id}, hint=hint)
    if first.state != "RUNNING":
        return Waiting(f"Slurm job {first.id} is {first.state}", 2.0, {"job": first.id})
    return _started(request, tpu, first)


def _may_fit_later(request: ProvisionRequest, tpu: SlurmTpuSection, job: SlurmJob) -> bool:
    """Return whether the job waits for nodes of its partition that are down or drained: Slurm has one reason for both.

    Raises:
        SlurmError: Slurm does not say.
    """
    if NODE_LIMIT not in job.reason:
        return False
    names = fields_of(commands.checked(request.resolved, _show(job.id))).get("Partition", "").split(",")
    shown = commands.checked(request.resolved, ["scontrol", "-a", "-o", "show", "partition"]).splitlines()
    named = [fields for fields in map(fields_of, shown) if fields.get("PartitionName") in names]
    rows = [row for row in named if not (least := row.get("MinNodes", "")).isdigit() or int(least) <= tpu.nodes]
    if named and not rows:
        return False
    limits = [
        min(
            (int(text) for name in ("MaxNodes", "TotalNodes") if (text := row.get(name, "")).isdigit()),
            default=tpu.nodes,
        )
        for row in rows
    ]
    return tpu.nodes <= max(limits, default=tpu.nodes)


def _cancelled(request: ProvisionRequest) -> Denied | None:
    """Return that somebody has cancelled the job, until that answer is stored."""
    denied = _file(request, _DENIED)
    if (cancelled := _file(request, "cancelled")).exists():
        cancelled.replace(denied)
    if not denied.exists():
        return None
    evidence = denied.read_text()
    number = request.labels.get("tpux-job", "").lstrip("0")
    hint = f"tpux does not submit by itself what somebody has cancelled; once you know why: tpux resume {number}"
    return Denied(Failure("config", evidence=evidence, hint=hint))


def _ended(request: ProvisionRequest) -> Waiting | Denied | None:
    """Return how the job that was submitted has ended, before another one is; None if Slurm knows nothing of it."""
    if not (job := request.saved_state.get("job")):
        return None
    status = inspect(request)
    if (denied := _cancelled(request)) is not None:
        return denied
    if status.state in {"ready", "unknown"}:
        return Waiting(status.evidence, 5.0, hint=status.hint)
    if UNKNOWN_JOB in status.evidence:
        return None
    lost = status.state == "preempted" or any(state in status.evidence for state in LOST_NODES)
    hint = f"see what Slurm says: scontrol show job {job}; its prolog and slurmd's log are the administrators'"
    evidence = f"{status.evidence}, before its nodes have answered"
    return Denied(Failure("preempted" if lost else "setup", evidence=evidence, hint="" if lost else hint))


def _unanswered(request: ProvisionRequest) -> Waiting | None:
    """Return how long the job of an sbatch without an answer may still appear; None if it does not any more."""
    sent = _file(request, _SENT)
    if not sent.exists() or (left := min(sent.stat().st_mtime, time.time()) + _UNANSWERED_FOR - time.time()) <= 0:
        return None
    why = f"sbatch was not answered: the job {request.name} may still appear"
    return Waiting(why, min(2.0, left), ends_within=left)


def _submit(request: ProvisionRequest, tpu: SlurmTpuSection) -> Waiting | Denied:
    whole = ["--exclusive", "--mem=0"]
    part = [*_option("cpus-per-task", tpu.cpus), *_option("mem", tpu.mem)]
    argv = [
        *("sbatch", f"--nodes={tpu.nodes}", "--ntasks-per-node=1", *(whole if tpu.exclusive else part)),
        *_option("partition", tpu.partition),
        *_option("account", tpu.account),
        *_option("qos", tpu.qos),
        *_option("time", tpu.time),
        *_option("gres", tpu.gres),
        *("--output=/dev/null", "--signal=TERM@60", *tpu.sbatch),
        *("--parsable", f"--job-name={request.name}", f"--comment={_comment(request)}", "--no-requeue"),
        *("--export=NIL", "--chdir=/"),
    ]
    script = batch_script(tpu, commands.environment(request.resolved), str(request.resolved.get("HOME", "")))
    sent = _file(request, _SENT)
    sent.write_text("")
    with _file(request, "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # by a descriptor that sbatch inherits: held until it has ended, whoever dies
        try:
            answer = commands.run(request.resolved, argv, script, inherit=[lock.fileno()])
        except commands.SlurmError as error:
            sent.write_text("ended") if error.sent else sent.unlink()
            raise
    sent.unlink()
    if not answer.code:
        job = answer.output.split(";")[0]
        return Waiting(f"Slurm job {job} is submitted", 0.5, {"job": job})
    # With DenyOnLimit, sbatch says the reason, and then "Job violates accounting/QOS policy (job submit limit, ...)".
    never = next(filter(None, map(why_never, re.findall(r"\w+", answer.error))), "")
    evidence = answer.error or f"sbatch: exit code {answer.code}"
    hint = never or "check partition, account, qos, gres, time and sbatch in the section tpu: `sinfo` lists partitions"
    if never or (_FINAL.search(evidence) and _A_LIMIT not in evidence):
        return Denied(Failure("config", evidence=evidence, hint=hint))
    return Waiting(evidence, 30.0, hint=f"if it stays so, {hint}")


def _started(request: ProvisionRequest, tpu: SlurmTpuSection, job: SlurmJob) -> Ready | Waiting | Denied:
    """Return the machines, once a keeper runs on each node."""
    argv = [*step(job.id, tpu.nodes), "--ntasks-per-node=1", "/bin/sh", "-c", CHECK, "check", PATH]
    answer = commands.run(request.resolved, [*argv, tpu.node_directory or ""])
    names = commands.checked(request.resolved, ["scontrol", "show", "hostnames", job.nodes]).split()
    described = commands.checked(request.resolved, ["scontrol", "-o", "show", "node", job.nodes]).splitlines()
    found = {line.split("|")[0]: line.split("|", 2)[1:] for line in answer.output.splitlines() if line.count("|") >= 2}
    for name, (status, text) in found.items():
        if status == "error":
            hint = "set tpu.node_directory to a directory of the node's own, or ask the administrators"
            return Denied(Failure("setup", evidence=f"node {name}: {text}", hint=hint))
    if missing := [name for name in names if found.get(name, [""])[0] != "ready"]:
        said = f": {answer.error}" if answer.code else ""
        why = f"Slurm job {job.id}: starting the keeper on {', '.join(missing)}{said}"
        return Waiting(why, 0.3, {"job": job.id})
    addresses = {fields["NodeName"]: fields.get("NodeAddr", "") for fields in map(fields_of, described)}
    workers = tuple(
        Worker(
            index,
            address=name,
            internal_ip=addresses.get(name) or name,
            details={"job": job.id, "directory": found[name][1]},
        )
        for index, name in enumerate(names)
    )
    port = _PORTS[0] + int(job.id) % _PORTS[1]
    allocation = Allocation(job.id, "slurm", workers, storage=tpu.storage or "", notice=NOTICE, coordinator_port=port)
    return Ready(allocation, {"job": job.id})


def inspect(request: ProvisionRequest) -> MachineStatus:
    """Report the state of the Slurm job, in Slurm's words."""
    job = request.saved_state.get("job")
    if not job:
        return MachineStatus("gone", evidence="no Slurm job was submitted")
    deadline = time.monotonic() + _COMPLETING_TIMEOUT
    while True:
        try:
            answer = commands.run(request.resolved, _show(job))
        except commands.SlurmError as error:
            return MachineStatus("unknown", error.message, hint=error.hint)
        if answer.code:
            is_gone = UNKNOWN_JOB in answer.error
            return MachineStatus("gone" if is_gone else "unknown", f"Slurm job {job}: {answer.error}")
        fields = fields_of(answer.output)
        state = fields.get("JobState", "")
        if state != "COMPLETING" or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    evidence = f"Slurm job {job} is {state}"
    wanted = {"PreemptTime": "None", "Reason": "None", "EndTime": "Unknown", "NodeList": "(null)"}
    said = [f"{name}={fields[name]}" for name, nothing in wanted.items() if fields.get(name, nothing) != nothing]
    evidence += f" ({' '.join(said)})" if said else ""
    if state in ENDED_BY_SOMEONE and not _file(request, f"release-{job}").exists():
        _file(request, "cancelled").write_text(f"{evidence}: cancelled, and not by tpux")
    return MachineStatus(STATES.get(state, "unknown"), evidence, confirmed=state in {"PREEMPTED", "TIMEOUT"})


def release(request: ProvisionRequest) -> Released | Waiting:
    """End the keepers, which remove what is on their nodes, then cancel the job; wait until Slurm has none."""
    _file(request, _DENIED).unlink(missing_ok=True)  # what releases follows the answer, which is stored
    try:
        with _submission(request) as is_free:
            if not is_free:
                return Waiting(_SUBMITTING, 1.0)
            jobs = _jobs(request, all_states=True)
            for job in jobs:
                if job.state != "COMPLETING":
                    _end(request, job)
        if not jobs:
            answer = _end_unlisted(request)
            return answer if isinstance(answer, Waiting) else _unanswered(request) or answer
    except commands.SlurmError as error:
        return Waiting(error.message, 5.0, hint=error.hint)
    return Waiting(", ".join(f"ending Slurm job {job.id}, which is {job.state}" for job in jobs), 0.5)


def _end_unlisted(request: ProvisionRequest) -> Released | Waiting:
    """Return whether the job that was submitted has ended: somebody may have changed by what squeue finds it.

    Raises:
        SlurmError: Slurm does not say.
    """
    if not (number := request.saved_state.get("job")):
        return Released()
    answer = commands.run(request.resolved, _show(number))
    if answer.code and UNKNOWN_JOB not in answer.error:
        raise commands.SlurmError(f"scontrol: {answer.error}")
    fields = fields_of(answer.output)
    state = fields.get("JobState", "")
    if answer.code or STATES.get(state, "ready") != "ready":
        return Released()
    if request.name != fields.get("JobName") and _comment(request) != fields.get("Comment"):
        what = f"Slurm job {number} is {state}, and has neither the name nor the comment of this job any more"
        return Released(f"{what}; end it with: scancel {number}")
    if state != "COMPLETING":
        _end(request, SlurmJob(str(number), state, "", "", ""))
    return Waiting(f"ending Slurm job {number}, which is {state}", 0.5)


def _end(request: ProvisionRequest, job: SlurmJob) -> None:
    """Take the next step to end a job. That tpux ends it is on disk before: another cancellation is final."""
    mark = _file(request, f"release-{job.id}")
    asked = mark.exists()
    if not asked:
        mark.touch()
    if job.state == "RUNNING" and not asked:
        if not commands.run(request.resolved, ["scancel", "--signal=USR2", job.id]).code:
            return
    elif job.state == "RUNNING" and time.time() < mark.stat().st_mtime + _KEEPER_TIMEOUT:
        return
    commands.run(request.resolved, ["scancel", job.id])  # squeue says next time whether it has


def _jobs(request: ProvisionRequest, *, all_states: bool = False) -> list[SlurmJob]:
    """Return the jobs with the request's name and its token or number, the oldest first; those that end only if asked.

    Also those of partitions that are hidden from the user (`-a`).
    """
    argv = ["squeue", "-h", "-a", "--me", f"--name={request.name}", "-o", _FORMAT]
    found = []
    for line in commands.checked(request.resolved, argv).splitlines():
        job, state, reason, nodes, start, comment = line.split("|", 5)
        is_ours = comment == _comment(request) or job == request.saved_state.get("job")
        if is_ours and (all_states or state != "COMPLETING"):
            found.append(SlurmJob(job, state, reason, nodes, start))
    return sorted(found, key=lambda one: int(one.id))


def _show(job: object) -> list[str]:
    return ["scontrol", "-a", "-o", "show", "job", str(job)]


@contextmanager
def _submission(request: ProvisionRequest) -> Iterator[bool]:
    """Say whether no sbatch of this request runs any more, also one whose supervisor was killed."""
    path = _file(request, "lock")
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        if (sent := _file(request, _SENT)).exists() and not sent.read_text():
            sent.write_text("ended")  # nobody knows when: its supervisor was killed
        fcntl.flock(lock, fcntl.LOCK_UN)
        yield True


def _file(request: ProvisionRequest, name: str) -> Path:
    return request.directory / f"slurm-{name}"


def _comment(request: ProvisionRequest) -> str:
    labels = request.labels
    token = labels.get("tpux-token") or f"{labels.get('tpux-store', '')}-{labels.get('tpux-job', '')}"
    return f"tpux:{token}"


def _section(request: ProvisionRequest) -> SlurmTpuSection:
    if not isinstance(request.tpu, SlurmTpuSection):
        raise TpuxError("the section tpu is not that of slurm")
    return request.tpu


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [f"--{name}={value}"]

"""The contract in one file: every hook that a plugin may implement.

A plugin is a module or an object behind an entry point of the group `tpux`; the entry point's name is the
word that a config uses. It implements hooks with `@tpux.hookimpl` and declares only the arguments that it uses.
*Addressed* hooks are called on one plugin (`Plugins.call_one`), *broadcast* hooks on every installed plugin
(`Plugins.call_each`). Every answer is validated against the return annotation (`answers.py`).
The *selected* plugins of a job are listed in `tpux.plugin.selected.selected_plugins`.
Each docstring ends with the version of tpux-core since when the hook exists.
docs/plugins/ describes each kind of plugin. The reference there is generated from this file: a page for each part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from tpux.model.events import Event
    from tpux.model.failures import Action, Failure, Finding, Finished
    from tpux.model.host import Host
    from tpux.model.job import Attempt, Checkpoint, Command, Job
    from tpux.model.json import JsonValue
    from tpux.model.machines import (
        Denied,
        MachineStatus,
        Orphan,
        Peer,
        ProvisionRequest,
        Ready,
        Released,
        Waiting,
        Worker,
    )
    from tpux.model.progress import Progress
    from tpux.model.sections import Section, TpuSection
    from tpux.model.steps import Result, Step, Steps

PROJECT = "tpux"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

API_VERSION = 1
"""The version of this contract. A plugin declares what it needs by its requirement on tpux-core."""

# --- common: what most plugins implement, a job's life first ------------------------------------


@hookspec(firstresult=True)
def provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    """Take one step towards the machines without blocking; idempotent on the request's name.

    Called repeatedly while the job is provisioning. What must be known after a crash goes into
    `Waiting.saved_state`, which is stored before the next call.
    Example: `return Waiting("queued in us-central2-b", poll_after=15)`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def check(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Yield steps that all succeed if the worker is ready. Called on each worker before each attempt.

    They change nothing. The first script should be quick: it is run in one exchange with the worker, and only if it has
    not ended within 5 s again as a step that can be continued. For `tpux check`, after which no program starts,
    `TPUX_CHECK_ONLY` is set in it.
    Example: `yield sh("mountpoint -q {path}", path=config.mount_path)`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        worker: the worker that is checked.

    Since 0.1.
    """


@hookspec(firstresult=True)
def setup(job: Job, config: Section | None, worker: Worker, peers: Sequence[Peer]) -> Steps:
    """Yield steps that make the worker ready; safe to repeat. Called where the check failed.

    If a step fails, it is called again; every other time the steps before that one are not run again, and return the
    results that they had.
    Example: `arch = yield sh("uname -m", example="x86_64")`, then further steps that depend on it.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        worker: the worker that is set up.
        peers: the job's other workers, as far as this one can run a shell on them: what one of them has built or
            downloaded need not be built again. All of them are set up at the same time.

    Since 0.1.
    """


@hookspec(firstresult=True)
def run(job: Job, command: Command, config: Section | None, worker: Worker) -> Command:
    """Return the command, wrapped. Called on the job's environment, once per attempt and worker.

    Example: `return replace(command, argv=("docker", "run", image, "bash", command.script))`.

    Args:
        job: the job.
        command: the command, as `prepare_command` of the selected plugins has returned it.
        config: the plugin's own section, None if the config has none.
        worker: the worker on which it is started.

    Since 0.1.
    """


@hookspec
def classify_failure(job: Job, config: Section | None, attempt: Attempt) -> list[Failure | Finished] | None:
    """Return what the exit codes and logs of an attempt mean; core ranks them. Broadcast when all workers have ended.

    Also while workers run, if `command.finished_by` is set and all have been silent for `watch.straggler_grace`.
    Example: `return [Failure("out-of-memory", worker=0, evidence=line)]`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        attempt: the attempt: the exit code, the time of the end and the log of each worker.

    Since 0.1.
    """


@hookspec(firstresult=True)
def on_preempt(job: Job, config: Section | None, failure: Failure, restarts: Mapping[str, int]) -> Action:
    """Return what follows a failure of any kind, preemption or not. Called on the plugin that `job.rule` names.

    The answer is final as to what is done. Core adds the backoff, and a ceiling of 20 restarts in a row on new
    machines unless `job.max_restarts` names the kind.
    Example: `return Action("resume", reapply=True, tpu={"zone": "us-central2-b"})`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        failure: what ended the attempt, or kept it from starting.
        restarts: how many restarts in a row there were, by kind of failure; 0 for a kind without any. An attempt that
            succeeded, or ran for an hour, and a resume by the user start the count again.

    Since 0.1.
    """


@hookspec(firstresult=True)
def config_section() -> type[Section] | None:
    """Return the model of the plugin's own section, None if it has none. Called when a config is read.

    Example: `return VenvSection`, a `tpux.Section` with a docstring for each field.

    Since 0.1.
    """


@hookspec(firstresult=True)
def resolve(job: Job) -> Mapping[str, JsonValue] | None:
    """Return what the environment says about a job. Called on the selected plugins, in the shell of `tpux create`.

    It is also called before `find_machines`, in the shell of a command such as `tpux ssh NAME`: `job.machines` is the
    name then.
    `job.resolved` has the answers of the plugins that were called before: the allocator is the first, then come
    the transport, modules, environment, rule and detectors.
    `tpux resume` and `tpux rerun` call it again if they change the config; `job.resolved` then has the previous
    answers of the others. While the job still holds machines, only plugins are called whose section has changed, and
    neither the allocator nor a transport.
    The answer is stored with the job, and read as `job.resolved[word]` and by an allocator as `request.resolved`;
    no other hook reads the environment. Raises `TpuxError` if the environment contradicts the config.
    `tpux show` prints it; with the key `shown`, a list of keys, only these.
    Example: `return {"project": os.environ.get("GOOGLE_CLOUD_PROJECT", "")}`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def preflight(job: Job) -> list[Finding] | None:
    """Check everything that can be checked before anything is created. Called on the selected plugins.

    What gets no answer now may get one later: it is a `warning`, which stops no job. So is a HostUnreachableError that
    the hook raises, or an OSError that names no file, such as a ConnectionError.
    Example: `return [Finding("error", "no key ~/.ssh/id", hint="ssh-keygen -t ed25519")]`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def prepare_command(job: Job, command: Command, config: Section | None, worker: Worker) -> Command:
    """Return the command with its directory and variables. Called on each selected plugin in turn, before `run`.

    What `run` gets is the last answer; the environment wraps it.
    Example: `return replace(command, cwd=directory)`.

    Args:
        job: the job.
        command: the command, as the plugin before has returned it. `tpux cp` asks only for `cwd`, and `command.env` has
            few variables then: a hook must not fail because one is missing.
        config: the plugin's own section, None if the config has none.
        worker: the worker on which it is started.

    Since 0.1.
    """


@hookspec
def solve(job: Job, config: Section | None, failure: Failure, worker: Worker) -> Steps | None:
    """Yield steps that repair the worker, none for a kind of failure that it does not know. Broadcast.

    Called before the next attempt, if the rule's action includes `solve`, and by `tpux solve`. No program of the job
    runs meanwhile. `tpux solve --dry-run` runs their previews in place of the steps, also while a program runs.
    Example: `if failure.kind == "tpu-busy": yield sh("sudo fuser -k /dev/accel0", may_fail=True)`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        failure: what ended the attempt; of kind `unknown` if `tpux solve` finds none.
        worker: the worker that is repaired, perhaps not that of the failure.

    Since 0.1.
    """


@hookspec
def on_event(job: Job, event: Event) -> None:
    """React to an event. Broadcast after the event is stored, in a thread of the listener's own; delays no job.

    Each event of a job is delivered at least once and in order, beginning at the listener's installation. One whose
    section's `ticks` asks for it also gets an `events.Tick` every minute.
    Example: `if isinstance(event, events.StateChanged) and event.to == "failed": send_mail(...)`.

    Args:
        job: the job, with the attempt and stage as of the event.
        event: the event; docs/events.md lists the types.

    Since 0.1.
    """


# --- machines: the allocator that `tpu.allocation_mode` names, without wrappers, and the transport


@hookspec(firstresult=True)
def tpu_section() -> type[TpuSection] | None:
    """Return the model of the `tpu` section. Called on the allocator that `tpu.allocation_mode` names.

    A subclass of `tpux.TpuSection` adds the allocator's own keys, declares its `transport` and counts the
    workers; without this hook the section has core's keys only.
    Example: `return CloudTpuSection`, with `zone: str` and `transport = "ssh"`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def inspect(request: ProvisionRequest) -> MachineStatus:
    """Return the current state of the machines; an API error is `unknown`, never `gone`. Called while a job holds any.

    Also called, with `request.describe_workers`, when a worker's identity is not the allocation's
    (`HostIdentityError`), and by commands: only `workers` of the answer counts then.
    Example: `return MachineStatus("preempted", evidence="node n1 is PREEMPTED")`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def release(request: ProvisionRequest) -> Released | Waiting:
    """Take one step towards releasing everything that costs money; also before anything is ready, and repeatedly.

    Example: `return Waiting("node n1 is DELETING", poll_after=5)`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def find_machines(request: ProvisionRequest) -> Ready | Waiting | None:
    """Return the existing machines called `request.tpu.name`, None if there are none; create nothing.

    Called repeatedly while the answer is `Waiting`, as `provision` is, when a user names machines that no job holds:
    `tpux ssh NAME`. The machines must accept `request.public_keys`.
    Example: `return Ready(Allocation("my-tpu", "ssh", workers, borrowed=True))`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def find_orphans(places: Sequence[Mapping[str, JsonValue]]) -> list[Orphan] | None:
    """Return the machines that jobs of this store created and that no job holds any more; delete nothing.

    Called hourly on the allocators of the stored jobs. `places` has what `resolve` returned for these jobs.
    Example: `return [Orphan("n1", "us-central2-b", "v4-8, READY", "tpux tpu delete n1 --zone us-central2-b")]`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def connect(worker: Worker, job: Job) -> Host:
    """Open a connection. Called on the transport that the allocation names.

    Example: `return LocalHost(worker)`.

    Args:
        worker: the worker, as its allocator describes it.
        job: the job, for the section of the transport.

    Raises:
        HostUnreachableError: the worker does not answer.
        HostIdentityError: another machine answers.

    Since 0.1.
    """


@hookspec(firstresult=True)
def public_keys(job: Job) -> list[str] | None:
    """Return public keys for the allocator to install on new machines. Called on the selected plugins.

    Example: `return ["tpux:ssh-ed25519 AAAA... tpux"]`.

    Since 0.1.
    """


@hookspec(firstresult=True)
def shell_on(worker: Worker, job: Job) -> Sequence[str] | None:
    """Return the command by which the job's other workers run a shell on a worker. Called on the job's transport.

    Example: `return ["ssh", "-oBatchMode=yes", "--", worker.internal_ip, "sh -s"]`.

    Args:
        worker: the worker on which the shell runs.
        job: the job.

    Returns:
        As in `tpux.Peer.shell`; None if the other workers cannot reach it.

    Since 0.1.
    """


@hookspec(firstresult=True)
def storage_options(job: Job, scheme: str) -> Mapping[str, object] | None:
    """Return how fsspec opens the job's output directory: the arguments of the file system, such as credentials.

    With `protocol` among them it is opened as that instead of the URL's scheme.
    Asked of the selected plugins if `job.output_dir` is a URL; the first answer counts. Nothing of it is stored.

    Args:
        job: the job.
        scheme: of the URL, such as `gs`.

    Returns:
        None if the plugin knows nothing about the scheme.

    Since 0.1.
    """


# --- advanced -----------------------------------------------------------------------------------


@hookspec(firstresult=True)
def clean_up(job: Job, config: Section | None, worker: Worker, released: bool) -> Steps:
    """Yield steps that remove from a worker what must not stay there after the job, such as keys; safe to repeat.

    Called on the modules in reverse order when a job has ended, and again when it gives the machines up; not if they
    are deleted then, nor after `tpux setup`. A set-up may have been cut off anywhere, also between a file and the
    script that removes it. A resume sets the worker up again. Other jobs may use the machine. A worker that does not
    answer within 30 s is left as it is. A step that still runs when the next set-up begins is ended.
    Example: `yield sh("rm -f {path}", path=f".tpux/tool/{job.key}.token")`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        worker: the worker that is cleaned up.
        released: whether the job gives the machines up. Otherwise a resume may use them.

    Since 0.1.
    """


@hookspec(firstresult=True)
def collect(
    job: Job, config: Section | None, attempt: Attempt, worker: Worker
) -> Generator[Step, Result, Mapping[str, JsonValue] | None] | None:
    """Yield steps that read what a program has left on a worker, and return that as data.

    Called on all detectors when the program has failed on a worker, perhaps because core ended it, and on those that
    `command.finished_by` or a section of the config names also when it has ended otherwise, or all have been silent for
    `watch.straggler_grace`. A detector that returns None costs no exchange with the worker. Stored with the job, shown
    by `tpux show`, and passed to `classify_failure` as `attempt.collected[worker.index][word]`.
    Example: `found = yield sh("cat {path}", path=f"{attempt.output_dir}/result.json")`,
    then `return {"result": found.text}`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        attempt: the attempt, with its output directory.
        worker: the worker on which the steps run.

    Since 0.1.
    """


@hookspec
def monitor(
    job: Job, config: Section | None, attempt: Attempt, worker: Worker, options: Mapping[str, object]
) -> Generator[Step, Result, list[Finding] | Failure | None] | None:
    """Yield steps that examine a worker while the command runs, and return what they found. Broadcast.

    Called on each worker every `watch.resources_every`, and four times as often after a finding other than `ok`. The
    steps change nothing, and each may take 30 s. `tpux show` prints the messages of the findings. A `warning` is also
    shown in `why`, and written as an event `warned`, once in an attempt for each `where`: the resource that is
    short. A `Failure` ends the attempt. An error, or a hook that does not return within 30 s, is reported and ignored.
    Example: `used = yield sh("df -P /data")`, then `return [Finding("warning", "/data is full", where="disk /data")]`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        attempt: the attempt that runs, with its output directory.
        worker: the worker that is examined.
        options: what `storage_options` returned, if the output directory is a URL; else nothing.

    Since 0.1.
    """


@hookspec
def progress(job: Job, config: Section | None, lines: list[str]) -> Progress | None:
    """Return how far the program has come, as new lines of its output say; None if they say nothing. Broadcast.

    Called with the output of the first worker, at most every 5 s, and at the attempt's end once more. Of more than
    256 KiB the last ones are passed. What the answer lacks, such as a loss, stays as it was; core measures the rate.
    The hook is called in the job's turn, so it must be quick. An error is reported and ignored.
    Example: `return Progress(step=int(lines[-1])) if lines[-1].isdecimal() else None`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        lines: the lines, without their ends.

    Since 0.1.
    """


@hookspec
def diagnose(
    job: Job, config: Section | None, worker: Worker
) -> Generator[Step, Result, Sequence[Finding] | None] | None:
    """Yield steps that examine the worker and change nothing, and return what they found. Broadcast by `tpux diagnose`.

    The command names the worker; a finding's `hint` is the remedy, such as the command to type. One whose `where` is
    the path of a mount replaces that of core about this mount.
    Example: `used = yield sh("df -P /data")`, then `return [Finding("warning", "/data is full", hint="remove files")]`.

    Args:
        job: the job.
        config: the plugin's own section, None if the config has none.
        worker: the worker that is examined.

    Since 0.1.
    """


@hookspec(firstresult=True)
def find_checkpoint(job: Job, directories: Sequence[str], options: Mapping[str, object]) -> Checkpoint | Failure | None:
    """Find the newest complete checkpoint in output directories that are URLs. Called in a thread, before an attempt.

    Every plugin that implements it is called, in the order of their names, until one does not return None. After a
    failure, an exception or a minute the answer is unknown: the job waits, and calls again. It never starts from
    scratch for that. The plugin's `preflight` is called for each job whose output directory is a URL; an error of it
    says that the plugin cannot search there.
    Example: `return Checkpoint(next((one for one in directories if has_checkpoint(one)), ""))`.

    Args:
        job: the job; `command.checkpoint` is the pattern of what a directory has that can be resumed from.
        directories: of earlier attempts, the last one first.
        options: what `storage_options` returned.

    Returns:
        None if the plugin cannot open URLs of this scheme; a failure of the kind `infra` or `auth` if it is unknown.

    Since 0.1.
    """


@hookspec(firstresult=True)
def stored_files(resolved: Mapping[str, JsonValue]) -> Sequence[Path] | None:
    """Return the files in the plugin's own directory, `TPUX_HOME/<word>`, that one job uses. Called for each job.

    After a job was deleted, core deletes what is in that directory and belongs to no job, unless it was changed within
    the last hour. Called by `tpux list --disk` as well, which counts the sizes. If a call fails or names another path,
    nothing is deleted. `resolve` sets the time (`os.utime`) of a file that it uses again, and a plugin that must not be
    disturbed holds a shared `flock` on the file `lock` in the directory, which is never deleted.
    Example: `return [api.home() / "tool" / f"{resolved['snapshot']}.tar"]`.

    Args:
        resolved: what `resolve` of this plugin returned for the job.

    Returns:
        Files, or directories that are used as a whole; None if there are none.

    Since 0.1.
    """

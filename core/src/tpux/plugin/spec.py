"""The contract on one screen: every hook that a plugin may implement.

A plugin is a module or an object behind an entry point of the group `tpux`; the entry point's name is
the word that a config uses for it. It implements what it needs with `@tpux.hookimpl`, naming only the
arguments that it wants. *Addressed* hooks are asked of the one plugin that the job names (`Plugins.call_one`);
*broadcast* hooks of all that are installed, each answer guarded (`Plugins.call_all`).
docs/plugins.md walks through a plugin that fits on a screen.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from tpux.plugin.events import Event
    from tpux.plugin.failures import Action, Failure, Finding, Finished
    from tpux.plugin.host import Host
    from tpux.plugin.job import Attempt, Command, Job
    from tpux.plugin.machines import (
        Denied,
        MachineStatus,
        ProvisionRequest,
        Ready,
        Released,
        Waiting,
        Worker,
    )
    from tpux.plugin.sections import Section, TpuSection
    from tpux.plugin.steps import Result, Step, Steps

PROJECT = "tpux"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# --- the config ------------------------------------------------------------------------------


@hookspec(firstresult=True)
def config_section() -> type[Section] | None:
    """The model of the plugin's section. Asked when a config that has the section is read.

    Example: `return VenvSection`, a `tpux.Section` with a docstring a field.
    """


@hookspec(firstresult=True)
def tpu_section() -> type[TpuSection] | None:
    """Return the model of the `tpu` section. Called on the allocator that `tpu.allocation_mode` names.

    A subclass of `tpux.TpuSection` adds the allocator's own keys, declares its `transport` and counts the
    workers; without this hook the section has core's keys only.
    Example: `return CloudTpuSection`, with `zone: str` and `transport = "ssh"`.
    """


@hookspec(firstresult=True)
def preflight(job: Job) -> list[Finding]:
    """Look at all that can be looked at before anything is created. Asked of every plugin the job names.

    Example: `return [Finding("error", "no key ~/.ssh/id", hint="ssh-keygen -t ed25519")]`.
    """


# --- machines: the allocator that `tpu.allocation_mode` names --------------------------------


@hookspec(firstresult=True)
def provision(request: ProvisionRequest) -> Ready | Waiting | Denied:
    """Take one step towards the machines, and never wait; idempotent on the request's name.

    Asked again and again while the job is provisioning. What must be known after a crash goes into
    `Waiting.saved_state`, which is written down before the next step is taken.
    Example: `return Waiting("queued in us-central2-b", poll_after=15)`.
    """


@hookspec(firstresult=True)
def inspect(request: ProvisionRequest) -> MachineStatus:
    """What state the machines are in now; an API error is `unknown`, never gone. Asked while the job holds any.

    Example: `return Machines("preempted", evidence="node n1 is PREEMPTED")`.
    """


@hookspec(firstresult=True)
def release(request: ProvisionRequest) -> Released | Waiting:
    """Take one step towards nothing left that costs money; must work before anything is ready, and twice.

    Example: `return Waiting("node n1 is DELETING", poll_after=5)`.
    """


@hookspec(firstresult=True)
def connect(worker: Worker, job: Job) -> Host:
    """Open a connection. Asked of the transport that the allocation names.

    Example: `return LocalHost(worker)`. Raises `HostUnreachableError` when it does not answer.
    """


@hookspec(firstresult=True)
def public_keys(job: Job) -> list[str]:
    """Public keys that an allocator puts on new machines. Asked of every plugin the job names.

    Example: `return ["tpux:ssh-ed25519 AAAA... tpux"]`.
    """


# --- preparing and running: modules in the config's order, and the environment ----------------


@hookspec(firstresult=True)
def check(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Yield steps that all succeed where the worker is ready. Asked before each attempt, on each worker.

    Example: `yield sh("mountpoint -q {path}", path=config.mount_path)`.
    """


@hookspec(firstresult=True)
def setup(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Yield steps that make the worker ready; safe to repeat. Asked where the check failed.

    Example: `arch = yield sh("uname -m", example="x86_64")`, then more by what it says.
    """


@hookspec(firstresult=True)
def run(job: Job, command: Command, config: Section | None, worker: Worker) -> Command:
    """Wrap the command. Asked of the job's environment, once an attempt on each worker.

    Example: `return replace(command, argv=("docker", "run", image, "bash", command.script))`.
    """


# --- when something goes wrong -----------------------------------------------------------------


@hookspec
def diagnose(job: Job, worker: Worker) -> Generator[Step, Result, list[Finding]]:
    """Yield steps that look at the worker, and return findings with their cure. Broadcast by `tpux diagnose`.

    Example: `free = yield sh("free -m")`, then `return [Finding("warning", "under 1 GB of RAM left")]`.
    """


@hookspec
def classify_failure(attempt: Attempt) -> list[Failure | Finished]:
    """Say what the endings and logs of an attempt mean. Broadcast once all workers have ended; core ranks.

    Example: `return [Failure("out-of-memory", worker=0, evidence=line)]`.
    """


@hookspec
def solve(job: Job, failure: Failure, worker: Worker) -> Steps:
    """Yield steps that repair the worker before the next attempt; none for a kind it does not know. Broadcast.

    Example: `if failure.kind == "tpu-busy": yield sh("sudo fuser -k /dev/accel0", may_fail=True)`.
    """


@hookspec(firstresult=True)
def on_preempt(job: Job, failure: Failure) -> Action:
    """What follows this failure. Asked of the plugin that `job.rule` names; core's table answers for its own five.

    Asked of a rule plugin for every kind of failure, not for preemptions alone.
    Example: `return Action(restart="resume", reapply=True)`.
    """


@hookspec
def on_event(job: Job, event: Event) -> None:
    """Hear what happened. Broadcast after the event is on disk; nothing that a listener does stops or slows a job.

    docs/events.md lists the event types.
    Example: `if isinstance(event, events.StateChanged) and event.to == "failed": send_mail(...)`.
    """

"""Get machines from the allocator, inspect them, and release them: one question at a time."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from typing import Protocol, TypeVar

from tpux.backoff import Backoff
from tpux.errors import TpuxError
from tpux.lifecycle import policy, transfer
from tpux.lifecycle.attempt import command_workers
from tpux.lifecycle.clean_up import clean_up
from tpux.lifecycle.context import JobContext, Next
from tpux.lifecycle.failure import plugin_failure, record_failure
from tpux.lifecycle.job import build_request, unanswered_mark
from tpux.lifecycle.unused import remove_unused
from tpux.model import events
from tpux.model.events import Allocated, AllocationRequested, StateChanged
from tpux.model.failures import Failure, FailureKind
from tpux.model.machines import Denied, Inspection, MachineStatus, ProvisionRequest, Ready, Released, Waiting
from tpux.plugin import spec
from tpux.plugin.guard import PluginError, UnusablePluginError
from tpux.plugin.selected import selected_plugins
from tpux.store import files, requests

T = TypeVar("T", covariant=True)
_log = logging.getLogger(__name__)
INSPECT_BACKOFF = Backoff(2, 60)
"""Before an allocator that failed to inspect the machines is asked again."""
SHORTEST_POLL = 0.05
"""Seconds between two calls of an allocator, at least: `poll_after=0` means that the next step can follow at once."""
MAX_SHORT_POLLS = 20
"""Shorter ones in a row after which `SLOWED_POLL` is the least: the allocator would be called without end."""
SLOWED_POLL = 0.5
MACHINES_UNKNOWN = "machines unknown"
"""A condition whose observed time is counted: the allocator cannot say what state the machines are in."""
RESUME_WITHIN = 10.0
"""Seconds within which `tpux restart` resumes the job that it has stopped."""
LISTENERS_POLL = 0.2
"""Seconds between two checks whether the listeners have received all events of a job that has ended."""
LISTENERS_NOTICE = 1.0
"""Seconds after which the job's `why` says that it waits for listeners."""


def request_machines(context: JobContext) -> Next:
    """Return the transition to provisioning."""
    if giver := context.state.takes_over:
        return Next(StateChanged(to="provisioning", why=f"taking over the machines of job {int(giver)}"))
    tpu = context.job.tpu
    wanted = [tpu.accelerator] if isinstance(tpu.accelerator, str) else tpu.accelerator
    zone = tpu.first_zone()
    where = f"in {zone}" if zone else f"from {context.opened.config.allocator}"
    return Next(StateChanged(to="provisioning", why=f"requesting {' or '.join(wanted or ['machines'])} {where}"))


def provisioning(context: JobContext) -> Next:
    """Ask the allocator for its next step, until the machines are ready or it refuses them."""
    if context.state.waits_for_takeover:
        return transfer.take_over(context)
    try:
        if not context.state.requested:
            allocator = context.opened.config.allocator
            context.write(AllocationRequested(name=provision_request(context).name, allocator=allocator))
        answer = _provision(context)
    except PluginError as error:
        if not context.is_last_try(error):
            raise
        return record_failure(context, plugin_failure(error))
    context.plugin_errors.clear()
    step = _after_provision(context, answer)  # writes the answer
    unanswered_mark(context.record.directory).unlink(missing_ok=True)
    return step


def _provision(context: JobContext) -> Ready | Waiting | Denied:
    """Call `provision`. A mark on the disk says that it was called, until its answer is written."""
    request, mark = provision_request(context), unanswered_mark(context.record.directory)
    if not request.interrupted:
        files.write_atomic(mark, b"")
    try:
        return _call_allocator(context, spec.provision, request)
    except (PluginError, UnusablePluginError):
        raise
    except TpuxError as error:  # it counts as any other exception of the hook
        name = request.tpu.allocation_mode
        message = f"{context.plugins.guard.describe(name)} failed in provision: {error.message}"
        raise PluginError(message, plugin=name, hook=spec.provision.__name__, hint=error.hint) from error


def _after_provision(context: JobContext, answer: Ready | Waiting | Denied) -> Next:
    if isinstance(answer, Denied):
        context.log("tpu.log", f"{answer.failure.kind}: {answer.failure.evidence}")
        return record_failure(context, answer.failure)
    if isinstance(answer, Ready):
        context.forget_observations()  # those of other machines; before the event, so that none is taken for theirs
        context.write(Allocated(allocation=answer.allocation, saved_state=answer.saved_state))
        context.log("tpu.log", f"ready: {answer.allocation.name}, {len(answer.allocation.workers)} worker(s)")
        if failure := _check_allocation(context):
            return record_failure(context, failure)
        return Next(StateChanged(to="setting-up", why="setting up the workers"))
    context.waiting(answer.why, answer.saved_state)
    poll_after = _poll_after(context, answer)
    if (timeout := context.job.tpu.provision_timeout) is None:
        return Next(after=poll_after)
    if (left := context.deadlines.left(context.state.since + timeout, timeout)) > 0:
        return Next(after=min(poll_after, left))
    evidence = f"no machines within {timeout:.0f} s: {answer.why}"
    hint = "raise tpu.provision_timeout, or list more zones in tpu.zone"
    return record_failure(context, Failure("stockout", evidence=evidence, hint=hint))


def _check_allocation(context: JobContext) -> Failure | None:
    """Check the allocation against the config: the number of workers is certain only now."""
    try:
        command_workers(context)
    except TpuxError as error:
        return Failure("config", evidence=error.message, hint="correct command.workers")
    return None


# --- inspect ------------------------------------------------------------------------------------


def inspect_machines(context: JobContext) -> Inspection:
    """Ask the allocator what state the machines are in."""
    plugin_error = ""
    try:
        status = _call_allocator(context, spec.inspect)
        status = replace(status, poll_after=_poll_after(context, status))
        context.inspect_errors = 0
    except TpuxError as error:
        _log.warning("job %s: %s", context.state.id, error)
        plugin_error = error.message if isinstance(error, PluginError) else ""
        poll_after = INSPECT_BACKOFF.delay(context.inspect_errors)
        status = MachineStatus("unknown", evidence=str(error), poll_after=poll_after)
        context.inspect_errors += 1
    if status.state == "unknown":
        unknown_for = context.observed.observe(MACHINES_UNKNOWN, status.poll_after)
        undecided = unknown_for < context.job.watch.lost_after
        return Inspection(status, undecided=undecided, plugin_error=plugin_error)
    context.observed.end(MACHINES_UNKNOWN)
    kinds: dict[str, FailureKind] = {
        "preempted": "preempted",
        "maintenance": "maintenance",
        "gone": "preempted" if context.job.tpu.pricing != "ondemand" else "host-lost",
    }
    kind = kinds.get(status.state)
    if kind is None:
        return Inspection(status)
    every = set(range(context.allocation.slices)) if context.state.allocation else set()
    lost = tuple(sorted({*status.lost})) if {*status.lost} < every else ()
    failure = Failure(kind, evidence=status.evidence, at=context.clock.now(), slices=lost)
    return Inspection(status, failure)


# --- release ------------------------------------------------------------------------------------


def ended(context: JobContext) -> Next:
    """Release a finished job's machines when it is time, then delete its secrets, or the job if the user wants that.

    What the modules keep on the workers for the job alone is removed before; not between the two parts of a restart.
    """
    state = context.state
    if state.resume_follows and (left := context.deadlines.left(state.since + RESUME_WITHIN, RESUME_WITHIN)) > 0:
        return Next(after=left)  # the connections stay open
    if (delay := clean_up(context)) is not None:
        return Next(after=delay)
    context.reset()  # the machines may be kept for hours: keep no connection to them
    if state.given_to:
        return transfer.hand_over(context)
    if state.release_at is not None:
        left = context.deadlines.left(state.release_at, state.release_after)
        if left > 0:
            return Next(after=left)
        allocator = context.state.allocator
        call = context.cut_off.get(spec.release.__name__) or context.cut_off.get(f"plugin {allocator}")
        if call and forgets(context):
            forget(context, call)
            return Next(after=None)
        context.forget_cut_off(allocator)  # nothing but this plugin can release the machines
        return Next(after=release_machines(context) or 0.0)
    delete = state.last_request.get("action") == "delete"
    if delete and transfer.is_unconfirmed(context):
        return Next(after=transfer.POLL)
    if (delay := _wait_for_listeners(context, delete=delete)) is not None:
        return Next(after=delay)
    (context.record.config_directory / "secrets.json").unlink(missing_ok=True)
    if delete:
        _remove_record(context)
    return Next(after=None)


def _remove_record(context: JobContext) -> None:
    if context.listeners is not None:
        context.listeners.forget(context.state.id)
    context.store.remove(context.record)
    remove_unused(context.store, context.plugins)


def forgets(context: JobContext) -> bool:
    """Return whether a user wants a job's record removed even if its machines cannot be released."""
    applied = context.state.last_request
    pending = any(request.action == "delete" and request.forget for request in requests.pending(context.record))
    return pending or (applied.get("action") == "delete" and bool(applied.get("forget")))


def forget(context: JobContext, why: str) -> None:
    """Remove the record of a job whose machines cannot be released, and write which they are.

    Args:
        context: the job.
        why: why they cannot.

    Raises:
        OSError: it could not be written, and the record is as it was.
    """
    if context.state.requested:
        machines = context.record.describe_machines()
        _log.warning("job %s: forgotten; these machines were not released: %s: %s", context.state.id, machines, why)
        context.store.add_forgotten(context.state.id, machines)
    _remove_record(context)


def _wait_for_listeners(context: JobContext, *, delete: bool) -> float | None:
    """Let the listeners receive a job's last events: their sections may have secrets, which are deleted next.

    Args:
        context: the job.
        delete: its record is removed next. A user waits for that, and `delete` prints it.

    Returns:
        Seconds until the next call; None when they have, or `policy.LISTENERS_TIMEOUT` is over.
    """
    now = context.clock.monotonic()
    late = context.listeners.behind(context.state.id) if context.listeners is not None else []
    context.ended_since = now if context.ended_since is None else context.ended_since
    if not late or (waited := now - context.ended_since) >= policy.LISTENERS_TIMEOUT:
        return None
    if delete and waited > LISTENERS_NOTICE:
        context.waiting(f"waiting for listeners before the record is removed: {', '.join(late)}")
    return LISTENERS_POLL


def release_machines(context: JobContext) -> float | None:
    """Ask the allocator for one step of the release.

    Returns:
        Seconds until the next step; None once the allocator has confirmed the release.
    """
    if not context.state.releasing:
        context.write(events.ReleaseStarted())
    answer = _call_allocator(context, spec.release)
    if isinstance(answer, Released):
        unanswered_mark(context.record.directory).unlink(missing_ok=True)
        context.write(events.Released())
        context.log("tpu.log", "machines released")
        return None
    if answer.ends_within is None:
        context.waiting(answer.why, answer.saved_state)
    else:
        until = context.clock.now() + answer.ends_within
        why = f"release pending until {datetime.fromtimestamp(until):%H:%M}: {answer.why}"
        context.waiting(why, answer.saved_state, until)
    return _poll_after(context, answer)


# --- the allocator ------------------------------------------------------------------------------


class _AllocatorHook(Protocol[T]):
    """One of the three hooks that an allocator implements."""

    __name__: str

    def __call__(self, request: ProvisionRequest) -> T:
        """Call the hook."""


def _call_allocator(context: JobContext, hook: _AllocatorHook[T], request: ProvisionRequest | None = None) -> T:
    request = request or provision_request(context)
    name = request.tpu.allocation_mode
    answer = context.plugins.call_one(name, hook, request=request)
    if answer is None:
        raise TpuxError(f"the allocator {name} does not implement {hook.__name__}", where=f"plugin {name}")
    return answer


def _poll_after(context: JobContext, answer: Waiting | MachineStatus) -> float:
    """Return the seconds until the allocator's next call: what it wants, within limits."""
    context.short_polls = context.short_polls + 1 if answer.poll_after < SHORTEST_POLL else 0
    return max(answer.poll_after, SLOWED_POLL if context.short_polls > MAX_SHORT_POLLS else SHORTEST_POLL)


def provision_request(context: JobContext) -> ProvisionRequest:
    """Return what the job asks of its allocator; the same at every step of one request."""
    job = context.releasable_job if context.state.ended else context.job
    creating = context.state.state == "provisioning"
    asked = selected_plugins(job) if creating else ()
    answers = [context.plugins.call_one(name, spec.public_keys, job=job) or [] for name in asked]
    return build_request(job, context.state, tuple(key for keys in answers for key in keys))

"""Get machines from the allocator, inspect them, and release them: one question at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Protocol, TypeVar, cast

from tpux.backoff import Backoff
from tpux.errors import TpuxError
from tpux.lifecycle import transfer
from tpux.lifecycle.allocator_calls import PENDING_POLL
from tpux.lifecycle.change_config import refuse_config
from tpux.lifecycle.decision import plugin_failure, record_failure
from tpux.lifecycle.open import InvalidStoredConfigError, build_request, with_tpu
from tpux.lifecycle.programs import command_workers
from tpux.lifecycle.turn import Next, Phase, Turn
from tpux.lifecycle.waits_for_jobs import wait_for_jobs
from tpux.model import events
from tpux.model.events import Allocated, AllocationRequested, StateChanged, Warned
from tpux.model.failures import Failure, FailureKind
from tpux.model.machines import Denied, Inspection, MachineStatus, ProvisionRequest, Ready, Released, Waiting
from tpux.plugin import spec
from tpux.plugin.guard import PluginError, UnusablePluginError
from tpux.plugin.selected import selected_plugins
from tpux.store import files
from tpux.store.record import UNANSWERED

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


class Pending(Phase):
    """A job that is about to request machines, unless its config is no longer valid; it may wait for other jobs."""

    def step(self, turn: Turn) -> Next:
        """Request machines, once no other job has to end first."""
        try:
            turn.opened  # noqa: B018  (it reads the config)
        except InvalidStoredConfigError as error:
            return refuse_config(turn, error)
        return wait_for_jobs(turn) or request_machines(turn)


class Provisioning(Phase):
    """The wait for machines."""

    def step(self, turn: Turn) -> Next:
        """Ask the allocator for its next step, until the machines are ready or it refuses them."""
        if turn.state.waits_for_takeover:
            return transfer.take_over(turn)
        try:
            if not turn.state.requested:
                allocator = turn.opened.config.allocator
                turn.write(AllocationRequested(name=provision_request(turn).name, allocator=allocator))
            if (answer := _provision(turn)) is None:
                return Next(after=PENDING_POLL)
        except PluginError as error:
            if not turn.errors.is_last_try(error):
                raise
            return record_failure(turn, plugin_failure(error))
        turn.errors.plugin_errors.clear()
        step = _after_provision(turn, answer)  # writes the answer
        (turn.record.directory / UNANSWERED).unlink(missing_ok=True)
        return step


def request_machines(turn: Turn) -> Next:
    """Return the transition to provisioning."""
    if giver := turn.state.takes_over:
        return Next(StateChanged(to="provisioning", why=f"taking over the machines of job {int(giver)}"))
    tpu = with_tpu(turn.job, turn.state.action.tpu).tpu
    wanted = [tpu.accelerator] if isinstance(tpu.accelerator, str) else tpu.accelerator
    zone = tpu.first_zone()
    where = f"in {zone}" if zone else f"from {turn.opened.config.allocator}"
    return Next(StateChanged(to="provisioning", why=f"requesting {' or '.join(wanted or ['machines'])} {where}"))


def _provision(turn: Turn) -> Ready | Waiting | Denied | None:
    """Call `provision`; return None while it is under way.

    A mark on the disk says that it was called, until its answer is written.
    """

    def mark(request: ProvisionRequest) -> None:
        if not request.interrupted:
            files.write_atomic(turn.record.directory / UNANSWERED, b"")

    try:
        return _call_allocator(turn, spec.provision, before=mark)
    except (PluginError, UnusablePluginError):
        raise
    except TpuxError as error:  # it counts as any other exception of the hook
        name = turn.job.tpu.allocation_mode
        message = f"{turn.plugins.guard.describe(name)} failed in provision: {error.message}"
        raise PluginError(message, plugin=name, hook=spec.provision.__name__, hint=error.hint) from error


def _after_provision(turn: Turn, answer: Ready | Waiting | Denied) -> Next:
    if isinstance(answer, Denied):
        turn.log(f"{answer.failure.kind}: {answer.failure.evidence}")
        return record_failure(turn, answer.failure)
    if isinstance(answer, Ready):
        turn.workers.replace_machines(turn.record.directory)  # before the event, so that nothing is taken for theirs
        turn.write(Allocated(allocation=answer.allocation, saved_state=answer.saved_state))
        turn.log(f"ready: {answer.allocation.name}, {len(answer.allocation.workers)} worker(s)")
        try:
            command_workers(turn)  # the number of workers is certain only now
        except TpuxError as error:
            failure = Failure("config", evidence=error.message, hint="correct command.workers")
            return record_failure(turn, failure)
        return Next(StateChanged(to="setting-up", why="setting up the workers"))
    _warn(turn, answer.why, answer.hint)
    turn.waiting(answer.why, answer.saved_state, hint=answer.hint)
    poll_after = _poll_after(turn, answer)
    if (timeout := turn.job.tpu.provision_timeout) is None:
        return Next(after=poll_after)
    if (left := turn.deadlines.left(turn.state.since + timeout, timeout)) > 0:
        return Next(after=min(poll_after, left))
    evidence = f"no machines within {timeout:.0f} s: {answer.why}"
    hint = "raise tpu.provision_timeout, or list more zones in tpu.zone"
    return record_failure(turn, Failure("stockout", evidence=evidence, hint=hint))


# --- inspect ------------------------------------------------------------------------------------


def inspect_machines(turn: Turn, when: str = "") -> Inspection | None:
    """Ask the allocator what state the machines are in.

    Args:
        turn: the step.
        when: an answer counts only if it was asked for at the same stage of the job, and for the same reason.

    Returns:
        The answer; None until it has come.
    """
    plugin_error = ""
    try:
        status = _call_allocator(turn, spec.inspect, (turn.state.state, turn.state.attempt, when))
        if status is None:
            return None
        status = replace(status, poll_after=_poll_after(turn, status))
        turn.errors.inspect_errors = 0
    except TpuxError as error:
        _log.warning("job %s: %s", turn.state.id, error)
        plugin_error = error.message if isinstance(error, PluginError) else ""
        poll_after = INSPECT_BACKOFF.delay(turn.errors.inspect_errors)
        status = MachineStatus("unknown", evidence=str(error), poll_after=poll_after)
        turn.errors.inspect_errors += 1
    _warn(turn, status.evidence, status.hint)
    if status.state == "unknown":
        unknown_for = turn.workers.observed.observe(MACHINES_UNKNOWN, status.poll_after)
        undecided = unknown_for < turn.job.watch.lost_after
        return Inspection(status, undecided=undecided, plugin_error=plugin_error)
    turn.workers.observed.end(MACHINES_UNKNOWN)
    kinds: dict[str, FailureKind] = {
        "preempted": "preempted",
        "maintenance": "maintenance",
        "gone": "preempted" if turn.job.tpu.pricing != "ondemand" else "host-lost",
    }
    kind = kinds.get(status.state)
    if kind is None:
        return Inspection(status)
    every = set(range(turn.machines.slices)) if turn.state.allocation else set()
    lost = tuple(sorted({*status.lost})) if {*status.lost} < every else ()
    failure = Failure(kind, evidence=status.evidence, at=turn.clock.now(), slices=lost)
    return Inspection(status, failure)


def find_waiting(turn: Turn) -> str | None:
    """Return who waits for machines that a job keeps after its end; "" if nobody does, None until that is known."""
    try:
        status = _call_allocator(turn, spec.inspect, ("shared",))
    except TpuxError as error:
        _log.warning("job %s: who waits for its machines is not known: %s", turn.state.id, error)
        return ""
    return None if status is None else status.wanted_by


# --- release ------------------------------------------------------------------------------------


def release_machines(turn: Turn) -> float | None:
    """Ask the allocator for one step of the release.

    Returns:
        Seconds until the next step; None once the allocator has confirmed the release.
    """
    if not turn.state.releasing:
        turn.write(events.ReleaseStarted())
    if (answer := _call_allocator(turn, spec.release)) is None:
        return PENDING_POLL
    if isinstance(answer, Released):
        (turn.record.directory / UNANSWERED).unlink(missing_ok=True)
        if answer.left:  # before the event, which ends the wait of `tpux stop` and `tpux delete`
            turn.store.add_unreleased(turn.state.id, answer.left)
        turn.write(events.Released(left=answer.left))
        turn.log("machines released")
        return None
    _warn(turn, answer.why, answer.hint)
    until = None if answer.ends_within is None else turn.clock.now() + answer.ends_within
    pending = f"release pending until {datetime.fromtimestamp(until):%H:%M}: " if until else ""
    turn.waiting(f"{pending}{answer.why}", answer.saved_state, until, answer.hint)
    return _poll_after(turn, answer)


# --- the allocator ------------------------------------------------------------------------------


class _AllocatorHook(Protocol[T]):
    """One of the three hooks that an allocator implements."""

    __name__: str

    def __call__(self, request: ProvisionRequest) -> T:
        """Call the hook."""


def _call_allocator(
    turn: Turn,
    hook: _AllocatorHook[T],
    when: tuple[object, ...] = (),
    *,
    before: Callable[[ProvisionRequest], None] = lambda _: None,
) -> T | None:
    """Call a hook of the allocator in another thread.

    Args:
        turn: the step.
        hook: the hook.
        when: an answer that was asked for at another stage is not taken.
        before: called before the call is queued.

    Returns:
        The answer; None until it has come.
    """

    def prepare() -> Callable[[], T | None]:
        request = provision_request(turn)
        before(request)
        return partial(turn.plugins.call_one, name, hook, request=request)

    name, hook_name = turn.job_to_end().tpu.allocation_mode, hook.__name__
    call = turn.allocator.ask(name, (hook_name, *when) if when else hook_name, prepare)
    if call is None:
        return None
    if call.error is not None:
        raise call.error
    if call.answer is None:
        raise TpuxError(f"the allocator {name} does not implement {hook_name}", where=f"plugin {name}")
    return cast("T", call.answer)


def _warn(turn: Turn, text: str, hint: str) -> None:
    """Write that the user must do something, such as to log in again, when the allocator begins to say so."""
    if hint and hint not in {turn.errors.machines_hint, turn.state.hint}:
        turn.write(Warned(kind="machines", workers=(), text=text, hint=hint))
    turn.errors.machines_hint = hint


def _poll_after(turn: Turn, answer: Waiting | MachineStatus) -> float:
    """Return the seconds until the allocator's next call: what it wants, within limits."""
    turn.errors.short_polls = turn.errors.short_polls + 1 if answer.poll_after < SHORTEST_POLL else 0
    return max(answer.poll_after, SLOWED_POLL if turn.errors.short_polls > MAX_SHORT_POLLS else SHORTEST_POLL)


def provision_request(turn: Turn) -> ProvisionRequest:
    """Return what the job asks of its allocator; the same at every step of one `provision`."""
    job = turn.job_to_end() if turn.state.ended else turn.job
    creating = turn.state.state == "provisioning"
    asked = selected_plugins(job) if creating else ()
    answers = [turn.plugins.call_one(name, spec.public_keys, job=job) or [] for name in asked]
    request = build_request(job, turn.state, tuple(key for keys in answers for key in keys))
    return replace(request, shared=turn.state.ended and shares_machines(turn))


def shares_machines(turn: Turn) -> bool:
    """Return whether others may have the machines that a job keeps after its end."""
    return turn.record.stored_section("job").get("share") is True

"""What follows the end of a job: its workers are cleaned up, its machines released, and its record perhaps removed.

When the machines are released is decided with the change of state that ends the job: `policy.release_at`. The modules
remove from the workers what must not stay there, such as keys. Machines that are deleted next need none of it. Nothing
waits for long: a worker that does not answer is left as it is.
"""

from __future__ import annotations

import logging

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle import policy, transfer
from tpux.lifecycle.allocator_calls import PENDING_POLL
from tpux.lifecycle.garbage import remove_unused
from tpux.lifecycle.loss import lost_after
from tpux.lifecycle.machines import find_waiting, release_machines, shares_machines
from tpux.lifecycle.turn import Next, Phase, Turn
from tpux.model.events import CleanUpStarted, ReleaseScheduled
from tpux.model.machines import Worker
from tpux.plugin import spec
from tpux.plugin.guard import PluginError
from tpux.remote.markers import IN_PROGRESS, has_check
from tpux.remote.tasks import TaskGroup, WorkerTask, describe_failure, run_steps, write_marker
from tpux.remote.workers import Patience
from tpux.store import requests

_log = logging.getLogger(__name__)
CLEAN_UP_TIMEOUT = 30.0
"""Seconds that the clean-up of all workers may take."""
RESUME_WITHIN = 10.0
"""Seconds within which `tpux restart` resumes the job that it has stopped."""
SHARE_POLL = 10.0
"""Seconds between two looks whether somebody waits for machines that the job shares."""
LISTENERS_POLL = 0.2
"""Seconds between two checks whether the listeners have received all events of a job that has ended."""
LISTENERS_NOTICE = 1.0
"""Seconds after which the job's `why` says that it waits for listeners."""


class Ended(Phase):
    """A job that has ended, until its machines are released."""

    def __init__(self) -> None:
        self._cleaned_up = set[bool]()  # which clean-ups are done: of a job that has ended, and before a release
        self._ended_since: float | None = None
        self._look_at = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin the clean-up again that is under way."""
        self._clean_up: _CleanUp | None = None
        self.delays_restart = False

    def step(self, turn: Turn) -> Next:
        """Release the machines when it is time, then delete the job's secrets, or the job if the user wants that.

        The workers are cleaned up before; not between the two parts of a restart.
        """
        state = turn.state
        if state.resume_follows and (left := turn.deadlines.left(state.since + RESUME_WITHIN, RESUME_WITHIN)) > 0:
            return Next(after=left)  # the connections stay open
        delay = self._clean_up_workers(turn)
        self.delays_restart = self._clean_up is not None  # it would remove what a set-up writes
        if delay is not None:
            return Next(after=delay)
        turn.workers.reset()  # the machines may be kept for hours: keep no connection to them
        if state.transfer_to:
            return transfer.hand_over(turn)
        if state.release_at is not None:
            left = turn.deadlines.left(state.release_at, state.release_after)
            return self._keep(turn, left) if left > 0 else _release(turn)
        delete = state.last_request.get("action") == "delete"
        if delete and transfer.is_unconfirmed(turn):
            return Next(after=transfer.POLL)
        if (delay := self._wait_for_listeners(turn, delete=delete)) is not None:
            return Next(after=delay)
        (turn.record.config_directory / "secrets.json").unlink(missing_ok=True)
        if delete:
            _remove(turn)
        return Next(after=None)

    def _keep(self, turn: Turn, left: float) -> Next:
        """Keep the machines for some seconds more, unless the job shares them and somebody waits for them."""
        if turn.state.machines is None or not shares_machines(turn):
            return Next(after=left)
        now = turn.clock.monotonic()
        if now >= self._look_at:
            if (wanted_by := find_waiting(turn)) is None:
                return Next(after=min(left, PENDING_POLL))
            self._look_at = now + SHARE_POLL
            if wanted_by:
                turn.log(f"releasing the machines for {wanted_by} (job.share)")
                turn.write(ReleaseScheduled(release_at=turn.clock.now()))
                return Next(after=0.0)
        return Next(after=min(left, self._look_at - now))

    def _clean_up_workers(self, turn: Turn) -> float | None:
        """Continue the clean-up of the workers, if one is due.

        It is due when the job has ended, and again when it gives up machines that are not deleted then; not after
        `tpux setup`, unless that failed. The file of secrets is still there: a supervisor that finds it begins again.

        Returns:
            Seconds until the next call; None when nothing is left to do.
        """
        state = turn.state
        is_set_up = state.setup_only is not None and state.state == "stopped"
        if state.transfer_to or state.machines is None or state.releasing or is_set_up:
            return None
        released = state.release_at is not None and turn.deadlines.left(state.release_at, state.release_after) <= 0
        if released and _are_deleted(turn):
            return None
        is_new = released or (turn.record.config_directory / "secrets.json").exists()
        if not is_new or released in self._cleaned_up or _are_unreachable(turn):
            return None
        try:
            if self._clean_up is None or self._clean_up.released != released:  # a delete may come while one runs
                self._clean_up = _CleanUp(turn, released=released)
            delay = self._clean_up.advance(turn)
        except TpuxError as error:  # its config cannot be read any more: the end of a job must not depend on that
            turn.log(f"the workers were not cleaned up: {error.message}")
            delay = None
        if delay is None:
            self._clean_up = None
            self._cleaned_up.add(released)
        return delay

    def _wait_for_listeners(self, turn: Turn, *, delete: bool) -> float | None:
        """Let the listeners receive a job's last events: their sections may have secrets, which are deleted next.

        Args:
            turn: the step.
            delete: its record is removed next. A user waits for that, and `delete` prints it.

        Returns:
            Seconds until the next call; None when they have, or `policy.LISTENERS_TIMEOUT` is over.
        """
        now = turn.clock.monotonic()
        late = turn.listeners.behind(turn.state.id) if turn.listeners is not None else []
        self._ended_since = now if self._ended_since is None else self._ended_since
        if not late or (waited := now - self._ended_since) >= policy.LISTENERS_TIMEOUT:
            return None
        if delete and waited > LISTENERS_NOTICE:
            turn.waiting(f"waiting for listeners before the record is removed: {', '.join(late)}")
        return LISTENERS_POLL


def _release(turn: Turn) -> Next:
    """Release the machines, or remove the record of a job whose allocator does not return, if the user wants that."""
    abandoned, allocator = turn.errors.abandoned, turn.state.allocator
    call = abandoned.get(spec.release.__name__) or abandoned.get(f"plugin {allocator}")
    if call and may_remove_record(turn):
        remove_record(turn, call)
        return Next(after=None)
    if turn.errors.retry_plugin(allocator):  # nothing but this plugin can release the machines
        turn.reload()
    return Next(after=release_machines(turn) or 0.0)


# --- the record ---------------------------------------------------------------------------------


def may_remove_record(turn: Turn) -> bool:
    """Return whether a user wants a job's record removed even if its machines cannot be released."""
    applied = turn.state.last_request
    pending = any(request.action == "delete" and request.force for request in requests.pending(turn.record))
    return pending or (applied.get("action") == "delete" and bool(applied.get("force")))


def remove_record(turn: Turn, why: str) -> None:
    """Remove the record of a job whose machines cannot be released, and write which they are.

    Args:
        turn: the step.
        why: why they cannot.
    """
    if turn.state.requested:
        machines = turn.record.describe_machines()
        _log.warning("job %s: removed; these machines were not released: %s: %s", turn.state.id, machines, why)
        turn.store.add_unreleased(turn.state.id, f"these machines were not released: {machines}")
    _remove(turn)


def _remove(turn: Turn) -> None:
    if turn.listeners is not None:
        turn.listeners.drop_job(turn.state.id)
    turn.store.remove(turn.record)
    remove_unused(turn.store, turn.plugins)


# --- the clean-up of the workers ----------------------------------------------------------------


class _CleanUp:
    """The clean-up of all workers of a job that has ended.

    Args:
        turn: the step.
        released: it gives the machines up next.
    """

    def __init__(self, turn: Turn, *, released: bool) -> None:
        self.released = released
        self._began_at = turn.clock.monotonic()
        deleted = turn.state.last_request.get("action") == "delete"
        turn.workers.patience = Patience(lost_after(turn), unreachable_once=deleted, unreached_once=True)
        modules = [name for name in turn.job.modules[::-1] if _has_clean_up(turn, name)]
        if modules:
            turn.write(CleanUpStarted())
        workers = turn.machines.workers if modules else ()
        tasks = {worker.index: _clean_up_worker(turn, worker, modules, released) for worker in workers}
        self._tasks = TaskGroup(turn.workers, tasks, "a step of its clean-up")

    def advance(self, turn: Turn) -> float | None:
        """Continue; return the seconds until the next call, None when it is done, or has taken too long."""
        delay = self._tasks.advance()
        late = turn.clock.monotonic() - self._began_at > CLEAN_UP_TIMEOUT
        if delay is not None and not late:
            return delay
        missing = {index: lost.error for index, lost in turn.workers.unreachable.items()}
        if delay is not None and not missing:
            turn.log(f"the clean-up of the workers has not ended within {CLEAN_UP_TIMEOUT:.0f} s")
        for index, error in sorted(missing.items()):
            turn.log(f"worker {index}: not cleaned up: {error}")
        return None


def _are_unreachable(turn: Turn) -> bool:
    """Return whether it is known that the workers cannot be reached: they are lost, or a connection has blocked."""
    state, failure = turn.state, turn.state.failure
    lost = state.state == "failed" and failure is not None and failure.kind in policy.MACHINE_FAILURES
    lost = lost and not turn.machines.borrowed  # of a user's own machines perhaps one is lost
    return lost or bool(turn.errors.abandoned_transport())


def _are_deleted(turn: Turn) -> bool:
    """Return whether the release deletes the machines."""
    machines, release = turn.machines, turn.job_to_end().tpu.release
    return machines.costs and (not machines.borrowed or release == "always")


def _has_clean_up(turn: Turn, name: str) -> bool:
    try:
        return turn.plugins.implements(name, spec.clean_up)
    except TpuxError as error:
        turn.log(f"the workers were not cleaned up by {name}: {error.message}")
        return False


def _clean_up_worker(turn: Turn, worker: Worker, modules: list[str], released: bool) -> WorkerTask[None]:
    job = turn.job
    for name in modules:
        try:
            steps = turn.plugins.call_one(
                name, spec.clean_up, job=job, config=job.sections.get(name), worker=worker, released=released
            )
            # Without a check only the marker can tell that it is to be set up again, also if the next line is the last.
            if not has_check(turn.plugins, name):
                yield from write_marker(turn.workers, worker, name, IN_PROGRESS)
            header = f"round {turn.state.round}: clean_up {name}" + (" released" if released else "")
            run = f"{name}-clean_up" + ("-released" if released else "")
            failed = yield from run_steps(
                turn.workers, worker, steps, log=name, name=run, header=header, any_error=True
            )
            problem = describe_failure(*failed) if failed else ""
        except HostUnreachableError:
            raise
        except PluginError as error:
            problem = error.message
        if problem:
            turn.log(f"worker {worker.index}: not cleaned up by {name}: {problem}")

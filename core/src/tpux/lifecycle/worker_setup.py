"""Set up one worker: reserve its machine, then check and set up the modules in the config's order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from tpux.backoff import Backoff
from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle.connection import reachable_workers
from tpux.lifecycle.decision import plugin_failure
from tpux.lifecycle.open import JobNotOpenedError
from tpux.lifecycle.resume_point import Outputs, find_outputs
from tpux.lifecycle.turn import Turn
from tpux.model.failures import Failure
from tpux.model.host import OpenHost
from tpux.model.machines import Peer, Worker
from tpux.model.steps import Result, Step, Steps
from tpux.plugin import spec
from tpux.plugin.guard import PluginError, UnusablePluginError
from tpux.remote import disks, job_runs, process
from tpux.remote.markers import IN_PROGRESS, fingerprint, has_check, marker_path, stale_reason
from tpux.remote.steps import GRACE, KILL_TIMEOUT
from tpux.remote.tasks import (
    DoneSteps,
    WorkerTask,
    describe_failure,
    retry_unreachable,
    run_steps,
    step_title,
    write_marker,
)
from tpux.remote.termination import CHECK_EVERY, end_run

LAST_LINES = 3
"""How many lines at the end of a failed step's output are reported."""
RETRY_BACKOFF = Backoff(2, 300)
"""Before a failed setup is tried again."""
FINAL = 78
"""The exit code of a step that another try does not help: `EX_CONFIG` of sysexits."""
_NOT_RETRIED = (HostUnreachableError, PluginError, UnusablePluginError, JobNotOpenedError)
_STEP_OF_ROUND = re.compile(r"r(\d+)-")


@dataclass
class Progress:
    """How far the set-up of one worker is; its task writes it, in a thread of its own.

    Attributes:
        module: the module that is checked or set up; "" before the first and after the last.
        step: the step that takes long; "" if none does.
    """

    module: str = ""
    step: str = ""


class Peers:
    """What the set-up of one worker knows of the others.

    Attributes:
        commanded: the workers that will run the command.
    """

    def __init__(self, turn: Turn, commanded: list[Worker]) -> None:
        self.commanded = commanded
        self._turn = turn

    def peers_of(self, worker: Worker) -> list[Peer]:
        """Return the other workers that one can run a shell on."""
        return [peer for peer in self._reachable if peer.index != worker.index]

    @cached_property
    def _reachable(self) -> list[Peer]:
        """All workers. The transport is asked once, and only if some module has to be set up."""
        return reachable_workers(self._turn.plugins, self._turn.machines, self._turn.job)


def set_up_worker(
    turn: Turn, worker: Worker, modules: list[str], peers: Peers, progress: Progress
) -> WorkerTask[Failure | Outputs | None]:
    """Set up one worker, module by module; return the failure of the first that could not be set up.

    Of a worker that runs the command, return what the next attempt may resume from, the checkpoints on the first one.
    The modules may mount where they are.

    Args:
        turn: the step.
        worker: the worker.
        modules: the modules, in their order.
        peers: all workers of the job, and which of them run the command.
        progress: is kept up to date.
    """
    failure = yield from _try_repeatedly(turn, worker, "machine", lambda _: _reserve_machine(turn, worker))
    for name in modules:
        if failure is not None:
            break
        progress.module, progress.step = name, ""
        try:
            failure = yield from _set_up_module(turn, worker, name, peers, progress)
        except PluginError as error:
            if not turn.errors.is_last_try(error):
                raise
            return plugin_failure(error, worker.index)
    if failure is not None:
        return failure
    progress.module = progress.step = ""
    if worker not in peers.commanded:
        return None
    return (yield from find_outputs(turn, worker, checkpoints=worker == peers.commanded[0]))


def _end_earlier_steps(turn: Turn, worker: Worker) -> WorkerTask[None]:
    """End the steps of earlier rounds that still run: a clean-up would remove what this set-up writes, for example.

    Their supervisor has died, their worker was lost, or a clean-up took longer than `end.CLEAN_UP_TIMEOUT`. What an
    interrupted `tpux diagnose` has left may hold the TPU. A step that SIGKILL does not end runs no more code either, so
    it is not waited for any longer.
    """
    state = turn.state
    repaired = state.action.solve  # after the program, and given up where a worker was lost
    # And a user has resumed it. Not by `tpux restart`, which is to be fast: the solver ends a diagnosis in its way.
    had_ended = state.action.restart is None and state.modules_to_set_up is None
    if state.round == 1 or (state.prepared and state.run.round == state.round - 1 and not repaired and not had_ended):
        return  # there were none, or the last ones have ended: the program was started after them
    key, began = process.worker_key(turn.job.key, worker.index), turn.clock.monotonic()

    def end(host: OpenHost) -> int:
        late = turn.clock.monotonic() - began > GRACE
        runs = [run for run in job_runs.unfinished(host, key) if _is_left(run.name, turn.state.round)]
        why = "the workers are set up again"
        return sum(process.stop(host, run, signal="KILL" if late else "TERM", reason=why) for run in runs)

    while left := (yield from retry_unreachable(turn.workers, worker, end)):
        if turn.clock.monotonic() - began > GRACE + KILL_TIMEOUT:
            turn.log(f"worker {worker.index}: {left} process(es) of earlier steps could not be ended")
            return
        yield CHECK_EVERY


def _is_left(run: str, round_: int) -> bool:
    """Return whether a run, by its name, is a step of an earlier round, or of `tpux diagnose`."""
    step = _STEP_OF_ROUND.match(run)
    return run.startswith(job_runs.DIAGNOSIS) or (step is not None and int(step[1]) < round_)


def _try_repeatedly(
    turn: Turn, worker: Worker, what: str, task: Callable[[int], WorkerTask[Failure | None]]
) -> WorkerTask[Failure | None]:
    """Try a part of a worker's set-up until it succeeds, `setup.tries` times at most.

    A worker that cannot do what it is asked to, such as one with a full disk, has failed the try. The set-up of the
    others continues.

    Args:
        turn: the step.
        worker: which worker.
        what: the part, for people: the module's name.
        task: takes the number of the try; another failure than of set-up is final, and so is one with the code `FINAL`.

    Returns:
        The failure of the last try; None if one has succeeded.
    """
    failure: Failure | None = None
    may_run = False
    key = process.worker_key(turn.job.key, worker.index)
    for number in range(1, turn.job.setup.tries + 1):
        if number > 1:
            yield RETRY_BACKOFF.delay(number - 2)
        if may_run:  # the steps of each try have names of their own: the next would run beside it
            run = process.RemoteProcess(key, turn.state.attempt + 1, f"r{turn.state.round}-{what}-*")
            yield from end_run(turn.workers, worker, run, turn.job.command.grace_period)
            may_run = False
        try:
            failure = yield from task(number)
        except _NOT_RETRIED:
            raise
        except TpuxError as error:
            may_run = True
            turn.log(f"worker {worker.index}: {what}: {error.message}")
            failure = yield from _not_started(turn, worker, what, error)
        if failure is None or failure.kind != "setup" or failure.code == FINAL:
            break
    return failure


def _not_started(turn: Turn, worker: Worker, what: str, error: TpuxError) -> WorkerTask[Failure]:
    """Return the failure of a try whose step could not be started, as on a full disk."""
    full = yield from retry_unreachable(turn.workers, worker, lambda host: disks.full_now(host, error.message))
    shows = f"its disks: tpux exec {turn.number} --host --worker {worker.index} -- df -h . /tmp"
    return _failure(turn, worker, what, f"{full}: {error.message}" if full else error.message, error.hint, shows)


def _failure(turn: Turn, worker: Worker, what: str, evidence: str, *hints: str, code: int | None = None) -> Failure:
    hint = "; ".join(filter(None, [*hints, f"then: tpux resume {turn.number}"]))
    return Failure("setup", worker.index, f"{what}: {evidence}", hint, at=turn.clock.now(), code=code)


def _reserve_machine(turn: Turn, worker: Worker) -> WorkerTask[Failure | None]:
    """Return the failure of a worker whose machine another worker of the job has: its command would run only once."""
    yield from _end_earlier_steps(turn, worker)
    if len(turn.machines.workers) == 1:
        return None
    key, round_ = turn.job.key, turn.state.round
    holder = yield from retry_unreachable(
        turn.workers, worker, lambda host: job_runs.reserve_machine(host, key, round_)
    )
    if holder == worker.index:
        return None
    other = turn.machines.workers[holder]
    evidence = f"worker {holder} ({other.address}) and worker {worker.index} ({worker.address}) are the same machine"
    return Failure("config", worker.index, evidence, "give each machine once", at=turn.clock.now())


def _set_up_module(
    turn: Turn, worker: Worker, name: str, peers: Peers, progress: Progress
) -> WorkerTask[Failure | None]:
    """Check one module, set it up if the check fails, and check it again; return the failure of the last try.

    Every other try begins at the first step of the one before that has not succeeded, such as a download; the others
    begin at the first step, since what failed may follow from what an earlier one has found.

    Args:
        turn: the step.
        worker: the worker.
        name: the module.
        peers: all workers of the job.
        progress: gets the step that takes long.
    """
    marker = fingerprint(turn.job.sections.get(name))
    done = DoneSteps()

    def one_try(number: int) -> WorkerTask[Failure | None]:
        nonlocal done
        if (yield from _is_ready(turn, worker, name, marker, number, progress)):
            return None
        # This marker matches no config until setup has completed: a worker that is half set up is not ready.
        yield from write_marker(turn.workers, worker, name, IN_PROGRESS)
        done = done if number % 2 == 0 else DoneSteps(f"{name}-{spec.setup.__name__}-{number}")
        others = peers.peers_of(worker)
        failed = yield from _run_hook(turn, worker, name, spec.setup, number, progress, done=done, peers=others)
        when = ""
        if failed is None:
            done, when = DoneSteps(), "not ready after its set-up: "
            failed = yield from _run_hook(turn, worker, name, spec.check, number, progress, again=True)
        if failed is None:
            yield from write_marker(turn.workers, worker, name, marker, after_setup=True)
            return None
        output = f"all of its output: tpux logs {turn.number} --module {name} --worker {worker.index}"
        code = FINAL if failed[1].code == FINAL else None
        return _failure(turn, worker, name, when + describe_failure(*failed, lines=LAST_LINES), output, code=code)

    return (yield from _try_repeatedly(turn, worker, name, one_try))


def _is_ready(
    turn: Turn, worker: Worker, name: str, marker: bytes, number: int, progress: Progress
) -> WorkerTask[bool]:
    """Return whether the module was set up with this config, or never by tpux, and its check succeeds.

    What `tpux restart` sets up has changed, so it is not checked before.

    Args:
        turn: the step.
        worker: the worker.
        name: the module.
        marker: the marker of the module's present config.
        number: the number of the try, from 1.
        progress: gets the step that takes long.
    """
    if number == 1 and name in (turn.state.modules_to_set_up or ()):
        return False
    found = yield from retry_unreachable(turn.workers, worker, lambda host: host.read((marker_path(name), 0))[0])
    stale = stale_reason(found, marker, has_check=has_check(turn.plugins, name))
    if stale or (yield from _run_hook(turn, worker, name, spec.check, number, progress)) is not None:
        return False
    if found is None:
        yield from write_marker(turn.workers, worker, name, marker)  # from now on a change of the config is noticed
    return True


def _run_hook(
    turn: Turn,
    worker: Worker,
    name: str,
    hook: Callable[..., Steps],
    number: int,
    progress: Progress,
    *,
    again: bool = False,
    done: DoneSteps | None = None,
    **arguments: object,
) -> WorkerTask[tuple[Step, Result] | None]:
    section, what = turn.job.sections.get(name), hook.__name__
    steps = turn.plugins.call_one(name, hook, job=turn.job, config=section, worker=worker, **arguments)
    header = f"round {turn.state.round}, try {number}: {what} {name}" + (" again" if again else "")
    process = f"{name}-{what}-{number}" + ("-again" if again else "")
    at_once = hook is spec.check

    def lasts(step: Step) -> None:
        progress.step = step_title(step)

    failed = yield from run_steps(
        turn.workers, worker, steps, log=name, name=process, header=header, done=done, at_once=at_once, lasts=lasts
    )
    progress.step = ""
    return failed

"""The command on its workers: started once, watched, its output brought home, its end judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from tpux.errors import HostUnreachableError, TpuxError
from tpux.failures import Failure
from tpux.fanout import fanout
from tpux.lifecycle import attempts
from tpux.lifecycle.ending import Ender, end_leftovers
from tpux.lifecycle.judging import go_on, judge
from tpux.lifecycle.looking import Seen, last_words, look
from tpux.lifecycle.machines import look_at_machines, machines_failure, undecided
from tpux.lifecycle.work import Work
from tpux.machines import Machines, Worker

FIRST_PAUSE = 0.05
WORTH_TELLING = 5.0
"""Seconds that a worker is out of reach before the job says so."""


@dataclass
class Watch:
    """What is in memory of a running attempt; a new supervisor begins with an empty one."""

    seen: dict[int, Seen] = field(default_factory=dict)
    pause: float = FIRST_PAUSE
    machines: Machines = field(default_factory=lambda: Machines("ready"))
    inspect_at: float = 0.0
    verdict: Failure | None = None
    failed_at: float | None = None


def running(work: Work) -> float:
    """Look at every worker that has not ended; judge the attempt once all have, or the machines are gone."""
    if not work.state.attempt_open:
        return go_on(work)  # a supervisor wrote down how it ended, and was killed before the next word
    watch = work.recall(Watch, Watch)
    news = _look_at_workers(work, watch)
    if failure := _look_at_machines(work, watch):
        return judge(work, watch.machines, failure)
    if not _open(work):
        return _finish(work, watch)
    _tell(work)
    _lose_patience(work, watch)
    if watch.verdict or work.recalled(Ender):
        return _end_the_rest(work, watch)
    watch.pause = FIRST_PAUSE if news else min(watch.pause * 1.5, work.job.watch.poll_every)
    return watch.pause


def _open(work: Work) -> dict[int, Worker]:
    """The workers whose command has not ended."""
    return {
        index: work.allocation.workers[index]
        for index in attempts.workers(work.state)
        if str(index) not in work.state.endings
    }


def _look_at_workers(work: Work, watch: Watch) -> bool:
    """Start or poll each worker's run and write down what is new; whether anything is."""
    now = work.clock.now()
    due = {i: w for i, w in _open(work).items() if i not in watch.seen or watch.seen[i].retry_at <= now}
    answers = fanout(due, lambda _, worker: look(work, watch.seen, worker))
    news = False
    for index, answer in answers.items():
        if isinstance(answer, TpuxError):
            _out_of_reach(work, watch, index, answer)
            continue
        work.reached(work.allocation.workers[index])
        news |= bool(answer.output) or answer.phase != "running"
        if answer.phase in {"ended", "lost"}:
            reason = answer.reason or ("ended by tpux" if work.recalled(Ender) else "")
            work.write("worker-ended", attempt=work.state.attempt, worker=index, code=answer.code, reason=reason)
            if answer.code != 0 and watch.failed_at is None:
                watch.failed_at = now
    if not work.state.run["running"] and all(index in watch.seen for index in attempts.workers(work.state)):
        work.write("attempt-running", attempt=work.state.attempt)
        news = True
    return news


def _out_of_reach(work: Work, watch: Watch, index: int, error: TpuxError) -> None:
    """Note that a worker did not answer; it is looked at again with growing pauses."""
    if not isinstance(error, HostUnreachableError):
        raise error
    missing = work.missed(work.allocation.workers[index], error)
    now = work.clock.now()
    if not missing:
        watch.inspect_at = 0.0
    if missing > work.job.watch.lost_after and watch.machines.condition == "ready":
        hint = "the cloud says that the machine is there"
        watch.verdict = Failure("host-lost", index, evidence=str(error), hint=hint, at=now)
    if (seen := watch.seen.get(index)) is not None:  # where it was not started yet, the start is tried again
        seen.retry_at, seen.retry_pause = now + seen.retry_pause, min(seen.retry_pause * 2, 15.0)


def _tell(work: Work) -> None:
    """Say which workers are out of reach, once they have been so for a moment, and that they are no longer."""
    now = work.clock.now()
    missing = sorted(i for i, lost in work.out_of_reach.items() if now - lost.since > WORTH_TELLING)
    why = f"attempt {work.state.attempt}"
    if missing:
        why += f": out of reach: worker {', '.join(map(str, missing))} ({work.out_of_reach[missing[0]].error})"
    work.waiting(why)


def _look_at_machines(work: Work, watch: Watch) -> Failure | None:
    """Ask the allocator when it is time; the failure that its answer stands for, if any."""
    now = work.clock.now()
    if now < watch.inspect_at:
        return None
    watch.machines = look_at_machines(work)
    watch.inspect_at = now + watch.machines.look_again_after
    if (failure := machines_failure(work, watch.machines)) is not None:
        _look_at_workers(work, watch)  # what they still had to say
    return failure


def _lose_patience(work: Work, watch: Watch) -> None:
    """End the attempt where it has stalled, or where a worker failed and the others do not follow."""
    now, stalled = work.clock.now(), work.job.job.stalled_after
    last = max((seen.news_at for seen in watch.seen.values()), default=now)
    if watch.verdict is None and stalled is not None and now - last > stalled:
        watch.verdict = Failure("stalled", evidence=f"no worker wrote anything for {stalled:.0f} s", at=now)
    if watch.failed_at is None and any(ending["code"] != 0 for ending in work.state.endings.values()):
        watch.failed_at = now
    if watch.failed_at is not None and now - watch.failed_at > work.job.watch.straggler_grace:
        work.recall(Ender, lambda: Ender(work))


def _end_the_rest(work: Work, watch: Watch) -> float:
    delay = end_leftovers(work)
    if delay is None and _open(work).keys() <= work.out_of_reach.keys():
        return judge(work, watch.machines, watch.verdict)
    return FIRST_PAUSE if delay is None else min(delay, 0.5)


def _finish(work: Work, watch: Watch) -> float:
    """All have ended: end what they left behind, ask what became of the machines, and judge."""
    if (delay := end_leftovers(work)) is not None and not work.out_of_reach:
        return delay
    last_words(work)
    if any(ending["code"] != 0 for ending in work.state.endings.values()):
        watch.machines = look_at_machines(work)
        if undecided(work):
            work.waiting("all workers have ended; asking what became of the machines")
            return watch.machines.look_again_after
    return judge(work, watch.machines, watch.verdict)

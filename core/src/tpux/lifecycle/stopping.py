"""The user wants the job stopped: its programs end, and its machines are kept or given back."""

from __future__ import annotations

from tpux.fanout import fanout
from tpux.lifecycle import attempts
from tpux.lifecycle.ending import end_leftovers
from tpux.lifecycle.looking import PROBE_EVERY, Seen, last_words, look
from tpux.lifecycle.releasing import release_at
from tpux.lifecycle.work import Work
from tpux.runs import Status


def stopping(work: Work) -> float:
    """End the programs on every worker, confirmed; then the job is stopped."""
    delay = end_leftovers(work) if work.state.allocation is not None else None
    if work.state.attempt_open:
        _hear_out(work)
    if delay is not None:
        return delay
    if work.state.attempt_open:
        last_words(work)
        work.write("attempt-ended", attempt=work.state.attempt, failure=None, stopped=True)
    work.forget()
    work.move("stopped", why="as the user wanted", release_at=release_at(work, "stopped"))
    return 0


def _hear_out(work: Work) -> None:
    """Bring home what the programs say while they end, and write down who has; none is started any more."""
    now = work.clock.now()
    workers = {i: work.allocation.workers[i] for i in attempts.workers(work.state) if i not in work.out_of_reach}
    for index in workers:
        work.output_log(index).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    open_ = {index: worker for index, worker in workers.items() if str(index) not in work.state.endings}
    seen = {index: Seen(now, probe_at=now + PROBE_EVERY) for index in open_}
    for index, status in fanout(open_, lambda _, worker: look(work, seen, worker)).items():
        if isinstance(status, Status) and status.phase == "ended":
            work.write("worker-ended", attempt=work.state.attempt, worker=index, code=status.code, reason="stopped")

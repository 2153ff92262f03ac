"""Run the command: start it once on each worker, fetch its output, and notice when the attempt is over."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from functools import partial

from tpux.errors import HostUnreachableError, TpuxError
from tpux.lifecycle import loss, policy
from tpux.lifecycle.allocator_calls import PENDING_POLL
from tpux.lifecycle.attempt import resets_restarts, start_or_attach, write_end
from tpux.lifecycle.collected_files import FileCollection
from tpux.lifecycle.decision import after_attempt, plugin_failure
from tpux.lifecycle.endings import drain_output, known, read_notices, record_end, record_notice
from tpux.lifecycle.finished import Collection, FinishedCheck
from tpux.lifecycle.left import LeftProcesses, may_have_left
from tpux.lifecycle.machines import inspect_machines
from tpux.lifecycle.monitors import Monitors
from tpux.lifecycle.programs import open_programs, open_workers
from tpux.lifecycle.progress import ProgressReader
from tpux.lifecycle.repetition import without_progress
from tpux.lifecycle.stop import terminate
from tpux.lifecycle.turn import Next, Phase, Turn
from tpux.lifecycle.verdict import (
    Unanswered,
    had_finished,
    is_own_mistake,
    notice_failure,
    reported_finished,
    verdict,
)
from tpux.model.events import AttemptRunning, AttemptTerminating
from tpux.model.failures import Failure, Finished
from tpux.model.job import Job
from tpux.model.machines import Worker
from tpux.plugin.guard import PluginError
from tpux.remote.calls import WorkerCalls
from tpux.remote.output import POLL, RETRY_BACKOFF, Poller, PollState, Program, is_quiet
from tpux.remote.process import Status
from tpux.remote.tasks import WAIT_FOR_ANSWERS
from tpux.remote.termination import StackSaver

FIRST_DELAY = 0.05
READ_EVERY = 0.05
"""Seconds between two polls of a program that writes, while somebody reads; it is longer for more than 16 workers."""
RECENT = 30.0
"""Seconds after its last output for which a program counts as one that writes: most workers of a job are silent."""
QUICK_GRACE = 5.0
"""Observed seconds of `watch.verdict_grace` after a mistake that the program itself states."""
WAIT_FOR_LAST_OUTPUT = 60.0
"""Real seconds to wait for the final output of machines that are gone."""
SILENT, VERDICT = "silent", "verdict"
"""Conditions whose observed time is counted: no worker writes output; all have ended, and it is checked whether they
are preempted."""


class Running(Phase):
    """Poll the programs until all have ended, or the machines are gone. A new supervisor starts with an empty one.

    Attributes:
        failure: why tpux ends the attempt early, if it does.
        quiet_until: until when a step does nothing but ask whether the program runs on, silently (monotonic).
        poller: polls the programs.
    """

    def __init__(self) -> None:
        self._unanswered: Unanswered = {}
        self._files = FileCollection()
        self.restart()

    def restart(self) -> None:
        """Poll all workers anew; what detectors could not be asked is kept."""
        self._files = replace(self._files)
        self._begun = False
        self.quiet_until = 0.0
        self._delay = FIRST_DELAY  # seconds until the next poll; it grows while there is no output
        self._is_read = False  # whether somebody waits for output
        self.failure: Failure | None = None
        self._provisional: Failure | Finished | None = None
        self._drained = False  # the output was fetched after the end of all processes
        self._contact = loss.Contact()
        self._stragglers = loss.Stragglers()
        self._left = LeftProcesses()
        self._progress = ProgressReader()
        self._stacks: StackSaver | None = None

    def _begin(self, turn: Turn) -> None:
        resets_restarts(turn)  # its time is counted from now on
        self.poller = Poller(turn.workers, turn.job.watch.poll_every, silence_limit(turn.job), turn.log)
        self._calls: WorkerCalls[Status] = turn.workers.calls(POLL)
        self._collection = Collection(turn, self._unanswered)
        self._finished = FinishedCheck(turn, self._collection, self._unanswered)
        self._monitors = Monitors(turn)
        self._begun = True

    def is_quiet(self, now: float) -> bool:
        """Return whether the next step only asks whether the program runs on, silently, on workers that answer."""
        return self.quiet_until > now

    def step(self, turn: Turn) -> Next:
        """Poll every worker that has not ended; finish the attempt once all have, or the machines are gone."""
        if not turn.state.attempt_open:  # perhaps an earlier step has died, or raised, after writing how it ended
            return self._leave(turn)
        if not self._begun:
            self._begin(turn)
        self._is_read = turn.record.is_read()
        if self._is_still_quiet(turn):
            return Next(after=self._delay)
        ending = bool(turn.state.endings or turn.termination.begun or self.failure)
        news = self._poll(turn, ask_all=ending)  # an end is noticed sooner by asking
        self._progress.update(turn, news=news)
        self._monitors.update(turn)
        self.failure = notice_failure(turn) or self.failure or turn.state.run.failure or self._monitors.failure
        self._collection.begin_ended(turn)
        collecting = self._collecting = self._collection.advance(turn)
        if turn.clock.monotonic() >= self._contact.inspect_at and self._are_lost(turn):
            return self._end_attempt(turn)
        if not (running := open_workers(turn)):
            return self._finish(turn)
        self._report_problems(turn)
        silent = self._check_silence(turn)
        ends = self._stragglers.are_overdue(turn, self._interval(turn)) or turn.termination.begun
        if not ends and (finished := self._finished.advance(turn, silent, collecting, self._contact.inspection)):
            turn.log(f"ending the program, which has finished and is silent: {finished.evidence}")
            ends = True
        if self.failure or ends:
            return self._terminate(turn, running.keys())
        self._delay = FIRST_DELAY if news else min(self._delay * 1.5, self._longest_delay(turn))
        self.quiet_until = 0.0 if news or collecting is not None else self._next_duty(turn, running.keys())
        return Next(after=self._delay if collecting is None else min(self._delay, collecting))

    # --- silence --------------------------------------------------------------------------------

    def _is_still_quiet(self, turn: Turn) -> bool:
        """Return whether nothing is to be done, and no worker has anything new: many jobs wait most of the time."""
        now, job = turn.clock.monotonic(), turn.job
        if now >= self.quiet_until or self.failure or turn.termination.begun:
            return False
        self._delay = min(self._delay * 1.5, self._longest_delay(turn))
        if not all(self._is_known_to_be_quiet(poll, now) for poll in self.poller.polls.values()):
            return False
        return self._observe_silence(turn) < silence_limit(job)

    def _longest_delay(self, turn: Turn) -> float:
        """Return the longest time between two polls, in seconds: a short one while somebody reads what is written."""
        now, slow = turn.clock.monotonic(), turn.job.watch.poll_every
        often = sum(bool(poll.local) or _writes(poll, now) for poll in self.poller.polls.values())
        return min(READ_EVERY * max(1.0, often / 16), slow) if self._is_read and often else slow

    def _is_known_to_be_quiet(self, poll: PollState, now: float) -> bool:
        """Return whether a poll would find nothing new; what a script on the worker says of that may be late."""
        return is_quiet(poll, now) and not (self._is_read and poll.followed and _writes(poll, now))

    def _next_duty(self, turn: Turn, running: Set[int]) -> float:
        """Return until when there is nothing to do while the program runs on, silently; 0 if there is something."""
        state, workers, contact = turn.state, turn.workers, self._contact
        wrong = workers.unreachable or contact.doubt or contact.inspection.plugin_error or self._monitors.problem
        started = state.run.running and self.poller.polls.keys() >= running
        if wrong or state.endings or not started or workers.threads.busy():
            return 0.0
        return min(contact.inspect_at, self._progress.next_at, self._monitors.next_at)

    def _observe_silence(self, turn: Turn) -> float:
        """Return for how many seconds no worker was observed to write anything; 0 if that does not matter."""
        # While a worker cannot be asked, it is not known whether it writes anything.
        observable = self.poller.polls and not self._calls.pending and not turn.workers.unreachable
        matters = turn.job.job.stalled_after is not None or turn.job.command.finished_by
        return turn.workers.observed.observe(SILENT, self._interval(turn)) if observable and matters else 0.0

    def _interval(self, turn: Turn) -> float:
        return max(self._delay, turn.job.watch.poll_every)

    def _check_silence(self, turn: Turn) -> float:
        """End the attempt if its output has stalled; return for how many seconds no worker wrote anything."""
        stalled_after, silent = turn.job.job.stalled_after, self._observe_silence(turn)
        if stalled_after is not None and self._progress.progress.compiling:
            stalled_after = max(stalled_after, turn.job.watch.compile_timeout)
        # After a failure the others wait for their lost peer: that they are silent is no failure of its own.
        ends_anyway = self.failure or turn.termination.begun or loss.has_failed(turn)
        if stalled_after is not None and silent > stalled_after and not ends_anyway:
            evidence = f"no worker wrote anything for {stalled_after:.0f} s"
            hint = f"if its Python stacks could be saved, they are at the end of its output: {_last_output(turn)}"
            self.failure = Failure("stalled", evidence=evidence, hint=hint, at=turn.clock.now())
        return silent

    def _report_problems(self, turn: Turn) -> None:
        """Show which plugin fails, or which workers are unreachable for more than a moment, or short of something."""
        inspect_error = self._contact.inspection.plugin_error
        problem = turn.workers.transport_problem or (f"{inspect_error}; retrying" if inspect_error else "")
        problem = problem or self._contact.doubt or loss.unreachable_report(turn) or self._monitors.problem
        status = self._contact.inspection.status
        hint = "" if problem else status.hint or self._stragglers.hint
        problem = problem or (status.evidence if status.hint else self._stragglers.problem)
        turn.waiting(f"attempt {turn.state.attempt}" + (f": {problem}" if problem else ""), hint=hint)

    # --- polls ----------------------------------------------------------------------------------

    def _poll(self, turn: Turn, wait: float = WAIT_FOR_ANSWERS, *, ask_all: bool = False) -> bool:
        """Start or poll the command on each worker, and write which have ended.

        Args:
            turn: the step.
            wait: real seconds to wait for the answers; those of slower workers are taken by a later step.
            ask_all: also workers that are known without asking to have nothing new, which shows whether they answer.

        Returns:
            Whether anything is new.
        """
        news, polls = False, self.poller.polls

        def poll(_: int, program: Program) -> Status:
            return self.poller.poll(program, lambda: known(turn), lambda host: start_or_attach(turn, host, program))

        for index, answer in self._calls.make(self._due(turn, ask_all=ask_all), poll, wait).items():
            worker = turn.machines.workers[index]
            if isinstance(answer, PluginError) and turn.errors.is_last_try(answer):
                self.failure = self.failure or plugin_failure(answer, index)
                continue
            if isinstance(answer, TpuxError):
                started = turn.state.run.running or index in polls
                if not isinstance(answer, HostUnreachableError) and (isinstance(answer, PluginError) or not started):
                    raise answer
                self._mark_unreachable(turn, worker, answer)
                continue
            turn.workers.mark_reachable(worker)
            self._contact.last_tries.discard(index)
            if answer.output or answer.truncated:
                turn.workers.observed.end(SILENT)
            if answer.notice:
                record_notice(turn, index, answer.notice)
            news |= bool(answer.output) or answer.phase != "running"
            if answer.phase in {"ended", "lost"}:
                record_end(turn, index, answer)
        if not turn.state.run.running and polls.keys() >= open_workers(turn).keys():
            turn.write(AttemptRunning(attempt=turn.state.attempt))
            news = True
        return news

    def _due(self, turn: Turn, *, ask_all: bool) -> dict[int, Program]:
        """Return the programs to poll, or to start; see `_poll`."""
        now, polls = turn.clock.monotonic(), self.poller.polls
        waiting = [index for index, poll in polls.items() if poll.retry_at > now]
        if not ask_all:
            quiet = self._is_known_to_be_quiet
            waiting += [index for index, poll in polls.items() if poll.followed and quiet(poll, now)]
        due = open_programs(turn, without=waiting)
        # Once the attempt is to end, none is started that was not started yet.
        return {index: each for index, each in due.items() if index in polls} if self.failure else due

    def _mark_unreachable(self, turn: Turn, worker: Worker, error: TpuxError) -> None:
        """Record that a worker did not answer, or failed; the allocator is asked now, and after `watch.lost_after`."""
        poll = self.poller.polls.get(worker.index)
        delay = RETRY_BACKOFF.delay(poll.retries) if poll else self._interval(turn)
        if poll:  # without one it was not started yet: the start is tried again
            poll.retry_at = turn.clock.monotonic() + delay
            poll.retries += 1
        first = worker.index not in turn.workers.unreachable
        turn.workers.mark_unreachable(worker, error, delay)
        if worker.index in self._contact.last_tries:
            self.failure = self.failure or loss.lost_worker_failure(turn, worker.index)
        if first or worker.index in loss.overdue_workers(turn):
            self._contact.inspect_at = 0.0

    # --- the machines ---------------------------------------------------------------------------

    def _are_lost(self, turn: Turn) -> bool:
        """Ask the allocator about the machines, and try workers that are overdue.

        Returns:
            True if the attempt is over: all machines are lost, or the program has finished before. Programs that run
            on, on the other slices of a multislice, are terminated first: they can save their work.
        """
        contact = self._contact
        if (machines := inspect_machines(turn)) is None:
            return False
        contact.inspection = machines
        contact.inspect_at = turn.clock.monotonic() + machines.status.poll_after
        if machines.failure:
            self._poll(turn, WAIT_FOR_LAST_OUTPUT, ask_all=True)  # for their final output
        answering = open_workers(turn, without=[*turn.workers.unreachable, *self._calls.pending])
        contact.doubt = loss.why_unconfirmed(turn, machines, answering)
        if contact.doubt:
            contact.inspection = replace(machines, failure=None, undecided=True)
            contact.inspect_at = turn.clock.monotonic() + loss.VERDICT_POLL
        elif machines.failure:
            if not answering or had_finished(turn, machines, self.failure, self._unanswered):
                return True
            self.failure = self.failure or machines.failure
        if machines.status.state == "ready" and not self.failure:
            self._try_overdue_workers(turn)
        return False

    def _try_overdue_workers(self, turn: Turn) -> None:
        """Try one more login on the workers that are overdue; the attempt ends if one does not answer.

        The allocator has just reported the machines as ready. A call that began before does not count.
        """
        overdue = set(loss.overdue_workers(turn)) - turn.workers.threads.busy()
        self._contact.last_tries |= overdue
        for index in overdue:
            if poll := self.poller.polls.get(index):
                poll.retry_at = 0.0
        if overdue:
            self._poll(turn, ask_all=True)

    # --- the end of the attempt -----------------------------------------------------------------

    def _terminate(self, turn: Turn, running: Set[int]) -> Next:
        """Terminate the programs that run on; finish the attempt once they have ended."""
        if self.failure and turn.state.run.failure is None:  # later the exit codes alone would not tell
            turn.write(AttemptTerminating(attempt=turn.state.attempt, failure=self.failure))
        if (saving := self._save_stacks(turn)) is not None:
            return Next(after=saving)
        delay = terminate(turn)
        busy = turn.workers.threads.busy()  # perhaps it is being started
        not_started = running - self.poller.polls.keys() - busy if self.failure else set()
        if delay is None and running <= turn.workers.unreachable.keys() | not_started | turn.termination.hung.keys():
            return self._end_attempt(turn)
        return Next(after=FIRST_DELAY if delay is None else min(delay, 0.5))

    def _save_stacks(self, turn: Turn) -> float | None:
        """Save the stacks of a stalled program, once; return the seconds until the next call, None when it is done."""
        if self.failure is None or self.failure.kind != "stalled" or turn.termination.begun:
            return None
        if self._stacks is None:
            answering = open_programs(turn, without=turn.workers.unreachable)
            runs = {index: (program.worker, program.run) for index, program in answering.items()}
            self._stacks = StackSaver(turn.workers, runs, turn.log)
        if (delay := self._stacks.advance()) is None and self._stacks.saved:
            hint = f"where it hung is at the end of its output: {_last_output(turn)}"
            self.failure = replace(self.failure, hint=hint)
        return delay

    def _finish(self, turn: Turn) -> Next:
        """Finish an attempt that has ended on every worker: terminate what is left, and inspect the machines."""
        if may_have_left(turn, self.failure):
            if self._collecting is not None:
                return Next(after=self._collecting)
            reported = partial(reported_finished, turn, self._contact.inspection, self._unanswered)
            if (delay := self._left.check(turn, finished=reported)) is not None:
                return Next(after=delay)
        if (delay := terminate(turn)) is not None and not turn.workers.unreachable:
            return Next(after=delay)
        if not self._drained:
            more, errors = drain_output(turn)
            if more:
                return Next()
            for index, error in errors.items():
                missing = "the final output of its child processes may be missing"
                turn.log(f"worker {index}: {missing}: {error.message}")
            self._drained = True
        if self._collecting is not None:
            return Next(after=self._collecting)
        if not turn.state.run.notice and (delay := self._check_for_preemption(turn)) is not None:
            return Next(after=delay)
        return self._end_attempt(turn)

    def _check_for_preemption(self, turn: Turn) -> float | None:
        """Ask the allocator, and the workers for notices, whether a preemption has ended the command.

        Returns:
            Seconds until the next call; None once the cause is known, or the checks have lasted `watch.verdict_grace`.
        """
        endings, grace = turn.state.endings, turn.job.watch.verdict_grace
        codes = [(ending.code, ending.signal) for ending in endings.values()]
        announced, unreachable = bool(turn.machines.notice), bool(turn.workers.unreachable)
        interval = min(loss.VERDICT_POLL, grace)
        if suspected := policy.may_be_preempted(codes, announced=announced, unreachable=unreachable):
            read_notices(turn, interval)
            if self._provisional is None:
                self._provisional = verdict(turn, self._contact.inspection, self.failure, self._unanswered)
            if is_own_mistake(turn, self._contact.inspection, self._provisional):
                grace = min(grace, QUICK_GRACE)
        elif all(code == 0 for code, _ in codes):
            return None
        checked = turn.workers.observed.observe(VERDICT, interval) if suspected else grace
        if (machines := inspect_machines(turn, "ended")) is None:
            return PENDING_POLL
        self._contact.inspection = machines
        if doubt := loss.why_unconfirmed(turn, machines, {}):
            turn.waiting(f"the command has ended on all workers; {doubt}")
            read_notices(turn, loss.VERDICT_POLL)  # which also shows whether they answer
            return loss.VERDICT_POLL
        if machines.failure or turn.state.run.notice:
            return None
        if machines.undecided:
            turn.waiting("the command has ended on all workers; checking the machines")
            return machines.status.poll_after
        if checked >= grace:
            return None
        self._report_check(turn, grace)
        return interval

    def _report_check(self, turn: Turn, grace: float) -> None:
        said, hint = "the command has ended on all workers", ""
        if isinstance(found := self._provisional, Failure):
            said = "the command has failed" + (f" on worker {found.worker}" if found.worker is not None else "")
            said += f", {found.evidence}"
            hint = f"to start it again without waiting: tpux restart {turn.number}; to end it: tpux stop {turn.number}"
        turn.waiting(f"{said}; checking for {grace:.0f} s whether the machines are preempted", hint=hint)

    def _end_attempt(self, turn: Turn) -> Next:
        """Write how the attempt ended, and return what follows."""
        ended = verdict(turn, self._contact.inspection, self.failure, self._unanswered)
        if isinstance(ended, Failure):
            ended = without_progress(turn, ended)
        broken = sorted(name for name, worker in self._unanswered if worker is None)
        if isinstance(ended, Failure) and broken:
            note = f"not asked, because broken: {', '.join(broken)} (tpux plugins list)"
            ended = replace(ended, hint="; ".join(filter(None, [ended.hint, note])))
        if isinstance(ended, Finished):
            write_end(turn, None, finished=ended.evidence)
        elif ended is not None and (hung := turn.termination.hung):  # they keep the next attempt from starting
            write_end(turn, replace(ended, evidence="; ".join(filter(None, [ended.evidence, *hung.values()]))))
        else:
            write_end(turn, ended)
        return self._leave(turn)

    def _leave(self, turn: Turn) -> Next:
        """Fetch what the attempt has left on the workers, and return what follows."""
        self.quiet_until = 0.0
        return after_attempt(turn) if (delay := self._files.advance(turn)) is None else Next(after=delay)


def silence_limit(job: Job) -> float:
    """Return the seconds of silence after which a program has stalled, or may have finished."""
    limits = (job.job.stalled_after, job.watch.straggler_grace if job.command.finished_by else None)
    return min((limit for limit in limits if limit is not None), default=math.inf)


def _writes(poll: PollState, now: float) -> bool:
    return now < poll.output_at + RECENT


def _last_output(turn: Turn) -> str:
    return f"tpux logs {turn.number} -n 50"

"""Run a job, disturb it as told, and watch what it leaves."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import TpuxError, UsageError, api, sh
from tpux_rehearse.attempts import RehearsedAttempt, read_attempts, read_lines, read_output
from tpux_rehearse.sandbox import run_tpux

if TYPE_CHECKING:
    from tpux import Host
    from tpux_rehearse.emulation import Emulation
    from tpux_rehearse.plan import Plan, Preemptions
    from tpux_rehearse.sandbox import Sandbox

_POLL = 0.3
_LOOK_EVERY = 2.0
_RESUME_TIMEOUT = 60.0
_MOST_FILES = 10
# What the set-up or Python itself writes is no checkpoint.
_FIND_WRITTEN = """find "$HOME" -mindepth 1 \\( -name '.*' -o -name __pycache__ \\) -prune -o \\
    -type f -newermt @{since} -print 2>/dev/null | head -n {count}"""


class Rehearsal:
    """One job, from its creation to its end.

    Args:
        sandbox: where it runs.
        name: of the directory that keeps its output.
        config: the config.
        plan: how the config is changed.
        preemptions: what happens to the program; None if nothing does.
        to_end: run the last attempt to its end; else it runs as long as the ones before.
        emulation: the emulator whose nodes are its machines; None if these are local workers.

    Attributes:
        ended: its state at its end.
        attempts: what happened.
        cut_short: the last attempt was stopped by the rehearsal, which had seen what it wanted to.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        name: str,
        config: Path,
        plan: Plan,
        preemptions: Preemptions | None,
        *,
        to_end: bool,
        emulation: Emulation | None = None,
    ) -> None:
        job = api.submit(config, list(plan.overrides), warn=lambda _: None)
        self._preemptions, self._to_end, self._emulation = preemptions, to_end, emulation
        self._preempted = 0
        self.job = job.id
        self.ended = job
        self.attempts: list[RehearsedAttempt] = []
        self.cut_short = False
        self._elsewhere: dict[int, list[str]] = {}
        self._looked = 0.0
        self._said = ""
        sandbox.jobs[name] = job.id

    def run(self) -> None:
        """Run the job to its end, or until enough is seen of it.

        Raises:
            TpuxError: a command that acts on the job has failed.
        """
        while not (info := api.job(self.job)).ended:
            self.attempts = read_attempts(api.events(self.job))
            self._say(info)
            self._look_elsewhere()
            self._act()
            api.supervisor.start_if_needed()
            time.sleep(_POLL)
        self.ended = info
        if info.state == "succeeded":
            self.cut_short = False  # it ended by itself as it was to be stopped
        self.attempts = read_attempts(api.events(self.job))
        for attempt in self.attempts:
            here = self._emulation.here if self._emulation else Path
            read_output(attempt, api.outputs(self.job, attempt=attempt.number), here(attempt.output_dir))
            attempt.elsewhere = self._elsewhere.get(attempt.number, [])

    def lines(self) -> list[str]:
        """Return what the first worker printed in all attempts."""
        numbers = [attempt.number for attempt in self.attempts]
        return [line for number in numbers for line in read_lines(api.outputs(self.job, attempt=number))]

    def _say(self, info: api.JobInfo) -> None:
        text = f"attempt {info.attempt} {info.state}" if info.state == "running" else info.state
        if text != self._said:
            api.say(text + (f": {info.why}" if info.why and info.state != "running" else ""))
            self._said = text

    def _act(self) -> None:
        """Do what is due: stop and resume the job, end it, or preempt emulated nodes; `local` preempts by itself."""
        if self._preemptions is None or not self.attempts:
            return
        last, disturbed = self.attempts[-1], 1 if self._preemptions.restart else self._preemptions.times
        due = time.time() >= (math.inf if last.running_at is None else last.running_at) + self._preemptions.after
        if not due or last.ended_at is not None:
            return
        if last.number > disturbed:
            if not self._to_end:
                self.cut_short = True
                api.stop(self.job, release=True)
        elif self._preemptions.restart:
            api.say("stopping the program, and resuming it")
            api.stop(self.job)
            if api.job(self.job).state == "stopped":  # it may have succeeded meanwhile
                run_tpux("resume", self.job)
                for _ in api.follow(self.job, lambda info: not info.ended, timeout=_RESUME_TIMEOUT):
                    pass
        elif self._emulation and self._preempted < last.number:
            api.say(f"preempting the machines of attempt {last.number}")
            self._emulation.preempt(self._preemptions.notice)
            self._preempted = last.number

    def _look_elsewhere(self) -> None:
        """Note which files the running program has written in the home directory of its first worker, which is lost."""
        if not self.attempts or self._preemptions is None or time.monotonic() < self._looked + _LOOK_EVERY:
            return
        last = self.attempts[-1]
        if last.running_at is None or last.ended_at is not None:
            return
        self._looked = time.monotonic()
        script = sh(_FIND_WRITTEN, since=str(last.running_at - 1), count=str(_MOST_FILES)).script

        def find(host: Host) -> str:
            return host.run(script).text

        try:
            connection = api.workers(self.job)
            [found] = connection.each(connection.allocation.workers[:1], find).values()
        except UsageError:  # it holds no machines any more
            return
        if isinstance(found, TpuxError):  # the machines are being preempted
            return
        if lines := [line for line in found.splitlines() if not line.startswith(last.output_dir)]:
            self._elsewhere[last.number] = lines

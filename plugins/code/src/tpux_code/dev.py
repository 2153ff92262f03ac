"""`tpux dev` (Workers): start a job's program again with each change of its code."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import TpuxError, UsageError, api
from tpux.api import new_app, say
from tpux.api.options import DURATION, JobArg
from tpux_code.section import CodeSection

if TYPE_CHECKING:
    from tpux import Job

app = new_app()
_AT_MOST = 5.0
"""Seconds after the first change for which further changes are waited for, if they keep coming."""
_LOOK_EVERY = 0.2
_SHOWN = "10"
"""Lines of each worker with which it begins."""
_MOVES = {"pending", "provisioning", "setting-up", "recovering", "stopping"}


@app.command(epilog="Example: tpux dev 12\n\nExample: tpux dev 12 --pause 2s")
def dev(
    job: JobArg,
    pause: Annotated[
        float,
        typer.Option(click_type=DURATION, show_default="0.2s", help="How long no file must have changed."),
    ] = 0.2,
) -> None:
    """Watch the code of a job; after each change, send it, start the program again, and show the new output.

    What you save is on the workers a moment later: it does what tpux sync JOB --restart -f does. Ctrl-C leaves the job
    running.
    """
    from watchfiles import watch

    opened = api.open_job(job, reads=["code"])
    section, directory = _watched(opened)
    shown, sent = str(int(opened.id)), str(opened.resolved["code"]["snapshot"])
    follower = _Follower(shown)
    try:
        if (now := _snapshot(section, opened)) not in {"", sent}:
            sent = now
            follower.restart()
        else:
            follower.run("logs", shown, "-f", "-n", _SHOWN)
        say(f"watching {directory}; Ctrl-C ends that, and the job keeps running")
        milliseconds = int(pause * 1000)
        for changes in watch(
            directory,
            step=milliseconds,
            debounce=max(milliseconds, int(_AT_MOST * 1000)),
            rust_timeout=int(_LOOK_EVERY * 1000),
            yield_on_timeout=True,
            raise_interrupt=True,
        ):
            if changes and (now := _snapshot(section, opened)) not in {"", sent}:
                sent = now
                follower.restart()
            elif (code := follower.final_code()) is not None:
                raise typer.Exit(code)
    finally:
        follower.end()


def _watched(job: Job) -> tuple[CodeSection, Path]:
    """Return a job's section, and the directory that it names.

    Raises:
        UsageError: the job has no directory of code.
    """
    section = job.section("code", CodeSection)
    if section is None or "code" not in job.resolved or section.dir is None:
        what = "no code" if section is None else "code of a repository, not of a directory"
        raise UsageError(f"job {int(job.id)} has {what}", hint="`code: .` in its config is the directory of the config")
    return section, Path(str(job.resolved["code"]["directory"]))


def _snapshot(section: CodeSection, job: Job) -> str:
    """Return the id of a snapshot of the code as it is now; "" if that is impossible, which is said."""
    from tpux_code.source import take_snapshot

    try:
        return str(take_snapshot(section, job.resolved["code"])["snapshot"])
    except (TpuxError, OSError) as error:  # files change while they are read: the next change tries again
        say(f"warning: {error}")
        return ""


class _Follower:
    """A command beside this one that shows the job's output; a restart replaces it.

    Args:
        job: the job's id.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._process: subprocess.Popen[bytes] | None = None
        self._restarts_after = -1
        """The attempt that the command under way ends; less, if it ends none."""
        self._reported = False

    def run(self, *command: str) -> None:
        """Run a command of tpux in the place of the one before."""
        self.end()
        self._reported = False
        self._process = subprocess.Popen([sys.executable, "-P", "-m", "tpux", *command])

    def restart(self) -> None:
        """Send the code and start the program with it, as soon as a restart under way has started it."""
        while self._is_running() and self._is_restarting():
            time.sleep(_LOOK_EVERY)
        for info in api.follow(self._job, lambda info: info.state not in _MOVES, note=say):
            self._restarts_after = info.attempt
        self.run("sync", self._job, "--restart", "-f")

    def final_code(self) -> int | None:
        """Return the command's exit code if nothing is left to restart; else say that a change is waited for."""
        if self._process is None or (code := self._process.poll()) is None or self._reported:
            return None
        info = api.job(self._job)
        if info.state == "succeeded" or info.machines is None:
            return code
        say(f"job {self._job} is {info.state}: waiting for a change of its code")
        self._reported = True
        return None

    def end(self) -> None:
        """End the command."""
        if self._process is not None and self._is_running():
            with suppress(ProcessLookupError):
                self._process.terminate()
            self._process.wait()

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _is_restarting(self) -> bool:
        return api.job(self._job).attempt <= self._restarts_after

"""A script on workers that is followed while it runs."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tpux import env
from tpux.errors import HostUnreachableError, UsageError
from tpux.remote import process
from tpux.remote.process import RemoteProcess
from tpux.remote.script import LONGEST_INLINE

if TYPE_CHECKING:
    from tpux.model.host import OpenHost
    from tpux.model.job import Command, Job
    from tpux.model.machines import Worker

_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""

# The exported variables identify its processes, so that they can be terminated. The shell runs nothing before it has
# read the last brace.
_START = """{{
export {marker}={id} {home}="$(pwd -P)"
{execute} </dev/null
}}
"""
_LONGEST = 64 * 1024  # bytes; `bash -c` takes 128 KiB


class RemoteScript:
    """A bash script on workers that lives as long as its connection, as with ssh: no run of a job.

    One that outlives its connection would cost three times as many processes on the worker.

    Args:
        job: the job.
        script: the script.
        wrap: returns the command that runs an argument vector on a worker.

    Raises:
        UsageError: the script is too long for a shell.
    """

    def __init__(self, job: Job, script: str, wrap: Callable[..., Command]) -> None:
        if len(script.encode(errors="surrogateescape")) > _LONGEST:
            raise UsageError(
                f"the command has {len(script)} characters, more than a shell accepts",
                hint="copy it to the workers as a file first (tpux ssh-config, scp), and run that",
            )
        self._job = job
        self._script = script
        self._wrap = wrap
        self._name = f"exec-{secrets.token_hex(4)}"

    def follow(self, host: OpenHost, receive: Callable[[bytes], None], *, timeout: float) -> int:
        """Run the script on a worker, and pass on its output as it comes.

        Args:
            host: an open connection to the worker.
            receive: called with each piece of output.
            timeout: seconds after which the script is terminated.

        Returns:
            Its exit code.

        Raises:
            TimeoutError: it took longer than that.
            HostUnreachableError: the connection was lost.
            PluginError: a hook of a plugin failed.
        """
        began = time.monotonic()
        try:
            return self._follow(host, receive, timeout)
        except HostUnreachableError:
            if time.monotonic() - began < timeout:
                raise
            self.terminate(host)
            raise TimeoutError(f"it took longer than {timeout:g} s and was ended") from None

    def terminate(self, host: OpenHost) -> None:
        """End the script on a worker: SIGTERM, after 5 s SIGKILL. It may be followed by another thread.

        Raises:
            HostUnreachableError: the worker does not answer.
        """
        deadline = time.monotonic() + _GRACE
        while process.stop(host, self._run(host.worker), signal="TERM" if time.monotonic() < deadline else "KILL"):
            time.sleep(0.2)

    def _follow(self, host: OpenHost, receive: Callable[[bytes], None], timeout: float) -> int:
        run = self._run(host.worker)
        command = self._wrap(host, ("bash", "-c", self._script), run=run.id)
        execute, run_id = process.execute(command), shlex.quote(run.id)
        text = _START.format(marker=env.RUN_ID, id=run_id, home=env.RUN_HOME, execute=execute)
        # What may be secret is no part of an argument, which others can read, nor is what is too long for one.
        if command.env or len(text) > LONGEST_INLINE // 4:
            return host.follow("exec sh -s", receive, stdin=text.encode(errors="surrogateescape"), timeout=timeout)
        return host.follow(text, receive, timeout=timeout)

    def _run(self, worker: Worker) -> RemoteProcess:
        return RemoteProcess(process.worker_key(self._job.key, worker.index), self._job.attempt, self._name)

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

if TYPE_CHECKING:
    from tpux.model.host import OpenHost
    from tpux.model.job import Job
    from tpux.model.machines import Worker

_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""

# The script is passed to bash unchanged: nothing in it can end the here-document. The exported variables identify
# its processes, so that they can be terminated.
_START = """
export {marker}={id} {home}="$(pwd -P)"
exec bash /dev/fd/3 </dev/null 3<<'{end}'
{script}
{end}
"""
_LONGEST = 64 * 1024  # bytes; `sh -c` takes 128 KiB


class RemoteScript:
    """A bash script on workers that lives as long as its connection, as with ssh: no run of a job.

    One that outlives its connection would cost three times as many processes on the worker.

    Args:
        job: the job.
        script: runs in the home directory.

    Raises:
        UsageError: the script is too long for a shell.
    """

    def __init__(self, job: Job, script: str) -> None:
        if len(script.encode(errors="surrogateescape")) > _LONGEST:
            raise UsageError(
                f"the command has {len(script)} characters, more than a shell accepts",
                hint="copy it to the workers as a file first (tpux ssh-config, scp), and run that",
            )
        self._job = job
        self._script = script
        self._name, self._end = f"exec-{secrets.token_hex(4)}", f"tpux-{secrets.token_hex(16)}"

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
        """
        began = time.monotonic()
        try:
            return host.follow(self._start(host.worker), receive, timeout=timeout)
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

    def _start(self, worker: Worker) -> str:
        run_id = shlex.quote(self._run(worker).id)
        return _START.format(marker=env.RUN_ID, id=run_id, home=env.RUN_HOME, end=self._end, script=self._script)

    def _run(self, worker: Worker) -> process.RemoteProcess:
        return process.RemoteProcess(process.worker_key(self._job.key, worker.index), self._job.attempt, self._name)

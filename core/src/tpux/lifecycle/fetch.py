"""Fetch the output of the command from a worker into its log, also of a program that truncates its output.

`> /dev/stdout` and `tee /dev/stderr` open the file again to which the output goes, and truncate it: what was fetched
until then is not in it any more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tpux.lifecycle.context import JobContext
from tpux.model.host import Host
from tpux.remote import process
from tpux.remote.process import RemoteProcess, Status
from tpux.store import files, output

SHORT = 4096
"""Bytes of output up to which its beginning is read again to compare: a new line may be as long as the one before."""
COMPARED = 512
"""Bytes of the beginning that are compared: later ones can be written twice, as `tee /dev/stderr` does."""
LAST = 64
"""Bytes before the offset that are read again of longer output: others mean that it was truncated."""
LONGEST_UNCOMPARED = 16
"""Of so many polls in a row one reads again what is known: to send that costs half as much as the rest of a poll."""

TRUNCATED = (
    "the program truncates its output, as `> /dev/stdout` and `tee /dev/stderr` do: parts of it may be missing;"
    " `>&2` and `tee -a /dev/stderr` do not"
)


def poll(host: Host, run: RemoteProcess, log: Path, *, probe: bool = False, silent: int = 0) -> Status:
    """Poll a run for output that its log does not have yet; see `process.poll`.

    If the program has truncated its output, what it has written since then is new, and the next offset changes. What
    it writes after a long silence is then found only after some polls more, since most of them read nothing again, or
    never if it is truncated before.

    Args:
        host: the worker.
        run: the run.
        log: its log.
        probe: check that its process lives, with `process.probe`.
        silent: how many polls in a row have found nothing.

    Raises:
        HostUnreachableError: the worker did not answer.
        TpuxError: the probe failed.
    """
    ask = process.probe if probe else process.poll
    offset = output.next_offset(log)
    if not probe and not _is_compared(silent):
        status = process.poll(host, run, offset)
        if status.phase == "absent" or (status.phase == "running" and not status.output):
            return status
    known = offset if offset <= SHORT else LAST
    begin = offset - known
    status = ask(host, run, begin)
    if status.phase == "absent" or not offset:
        return status
    read, new = status.output[:known], replace(status, output=status.output[known:])
    if len(read) == known:  # else the file is shorter
        if output.ends_with(log, read) if begin else output.has(log, read[:COMPARED]):
            return new
        if begin and output.is_overwritten(log):
            return new
    if begin:
        status = ask(host, run, 0)
        beginning = status.output[:COMPARED]
        if len(read) == known and len(beginning) == COMPARED and output.has(log, beginning):
            output.mark_overwritten(log)
            return new
        # Not truncated: a crash of the worker's machine has lost the end of the file.
        if len(status.output) > SHORT and output.has(log, status.output):
            return replace(status, output=b"", more=False)
    first = not output.was_truncated(log)
    output.begin_anew(log)
    return replace(status, truncated=first)


def _is_compared(silent: int) -> bool:
    """Return whether known output is read again: for a program that was silent for n polls at most n polls later."""
    return silent & (silent - 1) == 0 or silent % LONGEST_UNCOMPARED == 0


def append_output(
    context: JobContext, host: Host, run: RemoteProcess, log: Path, status: Status, max_fetch: int, after: float = 0.0
) -> Status:
    """Append the output of a poll to a run's log, and what there is beyond it.

    Args:
        context: the job.
        host: the worker.
        run: the run.
        log: its log.
        status: the answer of the poll.
        max_fetch: bytes after which no more is fetched in this call.
        after: see `record_time`.

    Returns:
        The last poll's answer.
    """
    fetched, truncated = 0, False
    if status.output:
        output.record_time(log, context.clock.now(), after)
    while True:
        if status.output or not log.exists():
            files.append_output(log, status.output)
        fetched += len(status.output)
        if status.truncated:
            truncated = True
            context.log("tpu.log", f"worker {host.worker.index}: {TRUNCATED}")
        if not status.more:
            return replace(status, truncated=truncated) if truncated else status
        if fetched >= max_fetch:
            return replace(status, phase="running", code=None, more=True, truncated=truncated)
        status = poll(host, run, log)

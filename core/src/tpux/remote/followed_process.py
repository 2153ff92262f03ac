"""Whether a run continues silently, so that it need not be polled: most jobs write nothing most of the time.

On this machine (`Host.local_home`) that is read from the sizes and times of its files, without a process. On another
one, if the transport can run a script beside other calls (`Host.stream`), `scripts/watch.sh` looks at the files and
writes a byte when one has changed, and another as a sign of life, as long as the runner lives. A step takes what has
arrived without waiting, and polls only the workers that have reported a change, were silent for `LONGEST_SILENCE`, or
are due for the check of their runner: each `output.PROBE_EVERY`, and once the script has ended, whatever the reason. A
reported change is cleared before the files are read, never after, so none is missed.

While a program ends, and after the allocator has reported a loss, all workers are polled.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.host import OpenHost, Stream
from tpux.remote.connections import TransportFailedError
from tpux.remote.process import RemoteProcess
from tpux.remote.script import Values, render

_log = logging.getLogger(__name__)
HEARTBEAT = 3.0
"""Seconds, about, after which the script writes although nothing has changed: a lost connection is silent too."""
CHANGED = b"+"
"""What the script writes when a file has changed; a dot otherwise."""
SHORTEST_INTERVAL = 0.25
"""Seconds between two checks of the files, of which each starts two processes."""
LONGEST_SILENCE = 8.0
"""Seconds without a byte of the script after which the worker is polled."""


@dataclass(frozen=True)
class LocalRun:
    """A run whose worker is this machine.

    Its paths are strings, since many jobs are polled each second.

    Attributes:
        output: its output on the worker.
        log: what was fetched of it.
        lock: the file whose lock its runner holds.
        news: files that are there once something has happened.
    """

    output: str
    log: str
    lock: str
    news: tuple[str, ...]

    @classmethod
    def at(cls, home: Path, run: RemoteProcess, log: Path) -> LocalRun:
        """Return a run by its worker's home directory and its log."""
        news = (f"{home}/{run.exit}", f"{home}/{run.notice}")
        return cls(f"{home}/{run.output}", str(log), f"{home}/{run.directory}/lock", news)

    def is_silent(self) -> bool:
        """Return whether all of its output was fetched, and neither its end nor a notice is recorded."""
        with suppress(OSError):
            output, log = os.stat(self.output), os.stat(self.log)  # noqa: PTH116  (called often)
            # A program that truncates its output may have written as much again.
            same = output.st_size == log.st_size and output.st_mtime_ns <= log.st_mtime_ns
            return same and not any(map(os.path.exists, self.news))
        return False

    def has_runner(self) -> bool:
        """Return whether its runner lives, which `scripts/probe.sh` asks of a worker elsewhere."""
        with suppress(OSError):
            lock = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(lock)
        return False


class FollowedProcess:
    """A run that `scripts/watch.sh` follows on its worker.

    Args:
        stream: the script's output.
        now: the time, by the monotonic clock.

    Attributes:
        ended: the script has ended, or nothing more can be learned from it.
    """

    def __init__(self, stream: Stream, now: float) -> None:
        self._stream = stream
        self._heard_at = now
        self._changed = True  # until the first poll
        self.ended = False

    @classmethod
    def start(cls, host: OpenHost, run: RemoteProcess, interval: float, now: float) -> FollowedProcess | None:
        """Start the script; None if that is not possible over this connection.

        Args:
            host: the worker.
            run: the run.
            interval: seconds between two checks of its files; if they are few or many, others are used.
            now: the time, by the monotonic clock.

        Raises:
            HostUnreachableError: the connection was lost.
        """
        stream: Callable[[str], Stream] | None = getattr(host, "stream", None)
        if stream is None:
            return None
        interval = min(max(interval, SHORTEST_INTERVAL), HEARTBEAT)
        values: Values = {"interval": f"{interval:.2f}", "heartbeat": math.ceil(HEARTBEAT / interval)}
        try:
            return cls(stream(render("watch", run.id, values)), now)
        except (TransportFailedError, OSError) as error:  # of an optional method: polls go on
            reason = str(error)
        except HostUnreachableError:
            raise
        except TpuxError as error:
            reason = error.message
        _log.info("run %s is not watched on its worker: %s", run.id, reason)
        return None

    def is_silent(self, now: float) -> bool:
        """Return whether the script has written recently, and has reported no change since the last `begin_poll`."""
        self._take(now)
        return not (self._changed or self.ended or self.is_overdue(now))

    def is_overdue(self, now: float) -> bool:
        """Return whether the script has written nothing for so long that the worker may be cut off."""
        return now - self._heard_at > LONGEST_SILENCE

    def begin_poll(self, now: float) -> None:
        """Forget the changes that were reported until now: the files are read after this call."""
        self._take(now)
        self._changed = False

    def close(self) -> None:
        """End the script."""
        self.ended = True
        try:
            self._stream.close()
        except (TpuxError, OSError) as error:  # the connection may be closed: then it ends the script
            _log.debug("closing the stream of a watched run: %s", error)

    def _take(self, now: float) -> None:
        try:
            piece = None if self.ended else self._stream.take()
        except (TpuxError, OSError) as error:
            _log.info("a run is not watched on its worker any more: %s", error)
            piece = None
        if piece is None:
            self.ended = True
        elif piece:
            self._heard_at = now
            self._changed = self._changed or CHANGED in piece

"""Whether a run on another machine continues silently: a script there reports each change, so it need not be polled."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from tpux.errors import HostUnreachableError, TpuxError
from tpux.plugin.host import Host, Stream
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


class WatchedRun:
    """A run that `scripts/watch.sh` watches on its worker.

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
    def start(cls, host: Host, run: RemoteProcess, interval: float, now: float) -> WatchedRun | None:
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

"""Calls with streams in both directions, many at once over one pair of byte streams: `from tpux.framing import Link`.

The streams may be a socket, or the pipes of a process such as `srun`. Each side begins with a line that has its version
(`HELLO`), and then sends frames: a header (the call's number, the kind, the length) and as many bytes. The side that
calls sends START, and then STDIN (an empty one is its end), or CANCEL; the other one STDOUT and STDERR, and at last
EXIT or ERROR. A sender may be ahead by `WINDOW` bytes of streams, and gets CREDIT for those that the receiver has used:
one that is slow stops the sender of its own call, and no other call.

It starts no threads, and waits for nothing but the streams and the other side. It imports the standard library only,
and needs no more than Python 3.8, so that its text may be sent to a worker.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

__all__ = ["Call", "CallError", "Frame", "Kind", "Link", "LinkError", "VersionError"]
VERSION = 1
"""Only sides with the same one understand each other."""
HELLO = b"tpux-frames %d\n"
WINDOW = 1024 * 1024
"""Bytes of its streams that a call may have sent, in each direction, and that the other side has not used."""
LEAST = 256
"""What a shorter frame of a stream counts for: a million frames of one byte are not a million bytes of memory."""
LONGEST_FRAME = 128 * 1024
"""The most bytes of a frame of a stream; longer data is sent in several."""
LONGEST_PAYLOAD = 64 * 1024 * 1024
"""The most bytes of any frame: more is no frame, but something else."""
_HEADER = struct.Struct(">IBI")
_LONGEST_HELLO = 64


class Kind(IntEnum):
    """What a frame is."""

    START = 1
    STDIN = 2
    STDOUT = 3
    STDERR = 4
    EXIT = 5
    ERROR = 6
    CANCEL = 7
    CREDIT = 8


_STREAMS = {Kind.STDIN, Kind.STDOUT, Kind.STDERR}
_ENDS = {Kind.EXIT, Kind.ERROR}


class Frame(NamedTuple):
    """One frame.

    Attributes:
        kind: what it is.
        payload: its bytes.
    """

    kind: Kind
    payload: bytes


class LinkError(Exception):
    """The streams have ended, or have something else than frames: what became of the calls is unknown."""


class VersionError(LinkError):
    """The other side has another version; nothing was sent to it."""


class CallError(Exception):
    """The call has ended, or was cancelled."""


class Call:
    """One call, on either side of it; a `Link` makes it. One thread may receive while another one sends.

    Args:
        link: the link.
        number: the call's number.

    Attributes:
        on_loss: called once the other side has cancelled the call, or cannot be reached any more, by the thread that
            runs `Link.run`: it must return at once.
    """

    def __init__(self, link: Link, number: int) -> None:
        self.on_loss: Callable[[], object] = lambda: None
        self._link = link
        self._number = number
        self._changed = threading.Condition()
        self._received: deque[Frame] = deque()
        self._window = WINDOW
        self._used = 0
        self._error: LinkError | CallError | None = None

    def send(self, kind: Kind, data: bytes = b"") -> None:
        """Send data of a stream. Waits while the other side has not used what was sent before.

        Args:
            kind: STDIN, STDOUT or STDERR.
            data: the data; b"" is the end of STDIN.

        Raises:
            CallError: the call has ended, or was cancelled.
            LinkError: the other side cannot be reached.
        """
        view = memoryview(data)
        while True:
            with self._changed:
                while self._window < LEAST and self._error is None:
                    self._changed.wait()
                self._require_open()
                piece = view[: min(self._window, LONGEST_FRAME)]
                self._window -= max(len(piece), LEAST)
            self._link.write(self._number, kind, piece)
            view = view[len(piece) :]
            if not view:
                return

    def end(self, kind: Kind, data: bytes = b"") -> None:
        """Send the last frame of the side that was called; does nothing if nobody waits for it any more.

        Args:
            kind: EXIT or ERROR.
            data: what the other side gets with it.
        """
        with self._changed:
            lost, self._error = self._error, CallError("the call has ended")
        self._link.forget(self._number)
        if lost is None:
            self._try_to_write(kind, data)

    def cancel(self) -> None:
        """Tell the side that was called that its answer is not needed any more, unless the call has ended."""
        with self._changed:
            ended, self._error = self._error, self._error or CallError("the call was cancelled")
        self._link.forget(self._number)
        if ended is None:
            self._try_to_write(Kind.CANCEL, b"")

    def receive(self, timeout: float | None = None) -> Frame:
        """Return the next frame of a stream, or the last one of the call.

        Args:
            timeout: seconds to wait for it; None for no limit.

        Raises:
            TimeoutError: none has come.
            CallError: the call has ended, or was cancelled.
            LinkError: the other side cannot be reached any more.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._received:
                self._require_open()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError("the other side has sent nothing")
                self._changed.wait(left)
            frame = self._received.popleft()
            self._used += max(len(frame.payload), LEAST) if frame.kind in _STREAMS else 0
            credit = self._used if self._used >= WINDOW // 4 and self._error is None else 0
            self._used -= credit
        if credit:
            self._try_to_write(Kind.CREDIT, credit.to_bytes(4, "big"))
        return frame

    def deliver(self, kind: Kind, payload: bytes) -> None:
        """Take a frame of the other side; the link calls this."""
        with self._changed:
            if kind == Kind.CREDIT:
                self._window += int.from_bytes(payload, "big")
            else:
                self._received.append(Frame(kind, payload))
            if kind in _ENDS:
                self._error = CallError("the call has ended")
            self._changed.notify_all()

    def lose(self, error: LinkError | CallError) -> None:
        """End the call, since the other side does not need it or cannot be reached; the link calls this."""
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            self._changed.notify_all()
        self.on_loss()

    def _try_to_write(self, kind: Kind, data: bytes) -> None:
        try:
            self._link.write(self._number, kind, data)
        except LinkError:
            return  # all calls have ended with it

    def _require_open(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)  # a new one: several threads may raise it


class Link:
    """One end of a pair of byte streams, and the calls over it. Any thread may call; one runs `run`.

    Args:
        read: takes a number, waits, and returns as many bytes at most; b"" at the end.
        write: writes all of the bytes, and waits until that is done.
    """

    def __init__(self, read: Callable[[int], bytes], write: Callable[[bytes], object]) -> None:
        self._read = read
        self._write = write
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._last = 0
        self._ended = ""

    def greet(self) -> None:
        """Exchange the versions; both sides do that before anything else.

        Raises:
            VersionError: the other side has another version.
            LinkError: it says something else, or nothing.
        """
        line, own = b"", HELLO % VERSION
        try:
            self._write(own)
            while not line.endswith(b"\n") and len(line) < _LONGEST_HELLO:
                line += self._exactly(1)
        except (OSError, ValueError) as error:
            raise LinkError(str(error)) from error
        if line != own:
            is_version = line.startswith(own.split()[0]) and line.endswith(b"\n")
            raise (VersionError if is_version else LinkError)(f"the other side says {line!r} instead of {own!r}")

    def call(self, data: bytes) -> Call:
        """Begin a call.

        Args:
            data: what the other side gets with it.

        Raises:
            LinkError: the other side cannot be reached.
        """
        with self._lock:
            self._require_open()
            self._last = number = self._last + 1
            call = self._calls[number] = Call(self, number)
        self.write(number, Kind.START, data)
        return call

    def run(self, accept: Callable[[Call, bytes], object] | None = None) -> str:
        """Receive frames until the streams end; then all calls end.

        Args:
            accept: is given each call of the other side, and what was sent with it; it must return at once. Without it
                the other side may not call.

        Returns:
            Why it has ended.
        """
        try:
            while True:
                number, kind, length = _HEADER.unpack(self._exactly(_HEADER.size))
                self._deliver(number, Kind(kind), self._exactly(length), accept)
        except (OSError, ValueError, LinkError) as error:
            self.close(str(error))
        return self._ended

    def close(self, reason: str) -> None:
        """End all calls. The streams are the caller's to close.

        Args:
            reason: what both ends of the calls on this side are told, unless it was closed before.
        """
        with self._lock:
            self._ended = self._ended or reason or "the connection was closed"
            calls, self._calls = [*self._calls.values()], {}
        for call in calls:
            call.lose(LinkError(self._ended))

    @property
    def ended(self) -> bool:
        """True if no call is possible any more."""
        return bool(self._ended)

    @property
    def calls(self) -> int:
        """How many calls have not ended."""
        return len(self._calls)

    def write(self, number: int, kind: Kind, payload: bytes | memoryview) -> None:
        """Write a frame; calls do that.

        Raises:
            LinkError: the streams have ended.
        """
        try:
            with self._writing:
                self._require_open()
                self._write(_HEADER.pack(number, kind, len(payload)) + payload)
        except BaseException as error:  # part of a frame may have been written, also if the user has interrupted it
            self.close(str(error))
            if isinstance(error, (OSError, ValueError)):
                raise LinkError(self._ended) from error
            raise

    def forget(self, number: int) -> None:
        """Drop a call that has ended; calls do that."""
        with self._lock:
            self._calls.pop(number, None)

    def _deliver(self, number: int, kind: Kind, payload: bytes, accept: Callable[[Call, bytes], object] | None) -> None:
        if kind == Kind.START:
            if accept is None:
                raise LinkError("the other side may not call")
            with self._lock:
                call = self._calls[number] = Call(self, number)
            accept(call, payload)
            return
        with self._lock:
            known = self._calls.get(number)
            if kind in _ENDS or kind == Kind.CANCEL:
                self._calls.pop(number, None)
        if known is None:
            return  # it has ended on this side just now
        if kind == Kind.CANCEL:
            known.lose(CallError("the call was cancelled"))
        else:
            known.deliver(kind, payload)

    def _require_open(self) -> None:
        if self._ended:
            raise LinkError(self._ended)

    def _exactly(self, size: int) -> bytes:
        """Read so many bytes."""
        if size > LONGEST_PAYLOAD:
            raise LinkError(f"the other side sends a frame of {size} bytes")
        pieces = []
        while size:
            if not (piece := self._read(size)):
                raise LinkError("the other side has ended")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

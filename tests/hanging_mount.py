"""A file system whose server reads each look-up of a name and does not answer: not even SIGKILL ends who asks."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

LOOKUP, FORGET, GETATTR, INIT, INTERRUPT = 1, 2, 3, 26, 36
NOT_IMPLEMENTED = -38
DIRECTORY = 0o40755
FORCE, DETACH = 1, 2


@contextmanager
def hanging_mount(path: Path) -> Iterator[None]:
    """Mount it. At the end all requests are aborted, and those who wait for an answer end."""
    if os.getuid() != 0:
        pytest.skip("only root may mount a file system")
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error.strerror}")
    path.mkdir()
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    # Not a type of a remote file system: `diagnose` in a test that runs at the same time would report the mount.
    if libc.mount(b"tpux-test", os.fsencode(path), b"fuse.portal", 0, options):
        os.close(device)
        pytest.skip(f"cannot mount here: {os.strerror(ctypes.get_errno())}")
    server = threading.Thread(target=_serve, args=(device,), daemon=True)
    server.start()
    try:
        yield
    finally:
        libc.umount2(os.fsencode(path), FORCE | DETACH)
        server.join()
        os.close(device)


def _serve(device: int) -> None:
    with suppress(OSError):  # unmounted
        while request := os.read(device, 1 << 17):
            _, code, unique = struct.unpack_from("<IIQ", request)
            if code in {LOOKUP, FORGET, INTERRUPT}:
                continue
            error, answer = 0, b""
            if code == INIT:
                answer = struct.pack("<IIIIHHI", 7, 19, 0, 0, 0, 0, 4096)
            elif code == GETATTR:
                answer = struct.pack("<QII6Q10I", 3600, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, DIRECTORY, 2, 0, 0, 0, 0, 0)
            else:
                error = NOT_IMPLEMENTED
            os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)

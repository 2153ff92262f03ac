"""Mount a FUSE file system at the directory of the first argument, read all requests, and answer none but the first."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

INIT = 26
"""The opcode of the request with which the kernel begins; see linux/fuse.h, as for the formats."""


def main() -> None:
    libc = ctypes.CDLL("libc.so.6", use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"data", os.fsencode(sys.argv[1]), b"fuse.silent", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    while True:
        request = os.read(device, 2**20)
        _, operation, unique = struct.unpack_from("IIQ", request)
        if operation == INIT:
            body = struct.pack("IIIIHHIIHHI", 7, 31, 2**16, 0, 12, 9, 2**16, 1, 0, 0, 0) + bytes(28)
            os.write(device, struct.pack("IiQ", 16 + len(body), 0, unique) + body)


if __name__ == "__main__":
    main()

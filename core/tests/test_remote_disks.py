"""Which full disk a failed step is reported with."""

from __future__ import annotations

import pytest

from tpux.remote.disks import find_full

HEAD = "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
FULL = b"x: No space left on device\n"
ROOT = "/dev/sda1 94726000 94726000 0 100% /\n"
HOME = "/dev/sdb 94726000 94726000 512 100% /home\n"
FREE = "/dev/sdc 1024000 24000 1000000 3% /tmp\n"
DATA = "/dev/sdd 2048000 2048000 0 100% /mnt/my disk\n"


@pytest.mark.parametrize(
    ("listed", "output", "expected"),
    [
        (HOME + FREE, b"", "the disk of worker 2 is full (/home: 0 of 97 GB)"),
        (ROOT + ROOT + FREE, b"", "the disk of worker 2 is full (/: 0 of 97 GB)"),
        (ROOT + FREE + DATA, b"", "the disk of worker 2 is full (/: 0 of 97 GB)"),
        (FREE + FREE + DATA, FULL, "the disk of worker 2 is full (/mnt/my disk: 0 of 2.1 GB)"),
        (FREE + FREE + DATA, b"no such file\n", ""),  # nothing says that it has to do with this step
        (FREE + FREE, FULL, "a disk of worker 2 was full (now /tmp: 1.0 of 1.0 GB)"),
        (FREE + FREE, b"no such file\n", ""),
        ("tmpfs 0 0 0 - /sys\n" + FREE, b"", ""),
        ("", FULL, ""),  # the run has deleted its directory, or there is no df
    ],
)
def test_full_disks(listed, output, expected):
    assert find_full(2, HEAD + listed, output) == expected

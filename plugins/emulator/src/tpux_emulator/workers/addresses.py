"""Loopback addresses: a block of 127.N.0.0/16 for each emulator, three addresses for each worker."""

from __future__ import annotations

import socket
import zlib
from dataclasses import dataclass

from tpux import TpuxError

_FIRST, _LAST = 16, 239
_PER_ROW, _ROWS = 250, 64
CAPACITY = _PER_ROW * _ROWS
# Nothing listens here; the bound port says that the block is taken, and is freed when the emulator ends.
_CLAIM_PORT = 9470


@dataclass(frozen=True)
class AddressBlock:
    """The addresses of one emulator: 127.N.0-63 external, 127.N.64-127 internal, 127.N.128-191 metadata.

    Args:
        number: N.
    """

    number: int

    def external(self, slot: int) -> str:
        """Where clients reach the worker of that slot."""
        return self._address(slot, 0)

    def internal(self, slot: int) -> str:
        """Where its siblings reach it."""
        return self._address(slot, 64)

    def metadata(self, slot: int) -> str:
        """Where it reaches its metadata server."""
        return self._address(slot, 128)

    @property
    def spare(self) -> str:
        """An address that no worker gets, to try ports on."""
        return f"127.{self.number}.255.253"

    def _address(self, slot: int, base: int) -> str:
        row, place = divmod(slot % CAPACITY, _PER_ROW)
        return f"127.{self.number}.{base + row}.{place + 1}"


def claim_block(seed: str, preferred: int | None = None) -> tuple[AddressBlock, socket.socket]:
    """A block that no other emulator on this machine has, and the socket that holds it.

    Args:
        seed: where to begin to look; emulators with different seeds seldom meet, not even over what a killed one left.
        preferred: the block of an earlier run, whose workers may still be there; no other will do then.

    Raises:
        TpuxError: the preferred block, or every block, is taken.
    """
    count = _LAST - _FIRST + 1
    start = zlib.crc32(seed.encode())
    for number in [preferred] if preferred is not None else [_FIRST + (start + i) % count for i in range(count)]:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind((f"127.{number}.255.254", _CLAIM_PORT))
        except OSError:
            held.close()
            continue
        return AddressBlock(number), held
    which = f"127.{preferred}.0.0/16" if preferred is not None else "127.16.0.0 to 127.239.0.0"
    raise TpuxError(
        f"the addresses {which} are taken by other emulators",
        hint="`tpux emulator stop` ends one; `tpux emulator reset` lets this one choose others",
    )

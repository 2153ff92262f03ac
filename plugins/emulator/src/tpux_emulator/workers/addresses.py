"""Loopback addresses: a block 127.N.0.0/16 per emulator, three addresses per worker."""

from __future__ import annotations

import socket
import zlib
from dataclasses import dataclass

from tpux import TpuxError

_FIRST, _LAST = 16, 239
_PER_ROW, _ROWS = 250, 64
CAPACITY = _PER_ROW * _ROWS
# A bound socket reserves the block until the emulator ends. Nothing listens on it.
_CLAIM_PORT = 9470


@dataclass(frozen=True)
class AddressBlock:
    """The addresses of one emulator: 127.N.0-63 external, 127.N.64-127 internal, 127.N.128-191 metadata.

    Args:
        number: N.
    """

    number: int

    def external(self, slot: int) -> str:
        """Return the address of a slot's worker for clients."""
        return self._address(slot, 0)

    def internal(self, slot: int) -> str:
        """Return the address of a slot's worker for the other workers of the slice."""
        return self._address(slot, 64)

    def metadata(self, slot: int) -> str:
        """Return the address of the metadata server of a slot's worker."""
        return self._address(slot, 128)

    @property
    def probe(self) -> str:
        """An address that no worker gets, for checking whether a port can be bound."""
        return f"127.{self.number}.255.253"

    def _address(self, slot: int, base: int) -> str:
        row, column = divmod(slot % CAPACITY, _PER_ROW)
        return f"127.{self.number}.{base + row}.{column + 1}"


def claim_block(seed: str, preferred: int | None = None) -> tuple[AddressBlock, socket.socket]:
    """Reserve a block that no other emulator on this machine has.

    Args:
        seed: determines the first block to try, so that different emulators rarely try the same one, not even after
            one was killed and left workers running.
        preferred: the block of an earlier run, whose workers may still be running; no other block is tried then.

    Returns:
        The block, and the socket that holds the reservation.

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
        f"the addresses {which} are used by other emulators",
        hint="stop one with `tpux emulator stop`; after `tpux emulator reset` this one takes other addresses",
    )

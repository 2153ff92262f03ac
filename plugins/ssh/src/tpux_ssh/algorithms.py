"""The order of SSH algorithms: key exchanges, ciphers and host key types, fastest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramiko import Transport

# AES-GCM authenticates by itself: half the calls per packet of a cipher with a separate MAC.
PREFERRED = {
    "kex": ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256"),
    "ciphers": ("aes128-gcm@openssh.com", "aes128-ctr"),
    "key_types": ("ssh-ed25519", "ecdsa-sha2-nistp256"),
}


def set_preferred_order(transport: Transport) -> None:
    """Offer the preferred algorithms first, and paramiko's others after them for servers that need those."""
    security = transport.get_security_options()
    for kind, preferred in PREFERRED.items():
        offered: tuple[str, ...] = getattr(security, kind)
        first = [name for name in preferred if name in offered]
        setattr(security, kind, [*first, *(name for name in offered if name not in first)])


def fastest_first(host_keys: Iterable[str]) -> tuple[str, ...]:
    """Return the host keys (`type base64`) with ed25519 first: paramiko requests the type of the first known key."""
    return tuple(sorted(host_keys, key=lambda key: key.partition(" ")[0] != PREFERRED["key_types"][0]))

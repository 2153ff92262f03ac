"""The order in which a connection offers key exchanges, ciphers and host key types."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramiko import Transport

# Cheap ones first; the others stay, for servers that insist. AES-GCM is its own MAC: half the calls a packet.
PREFERRED = {
    "kex": ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256"),
    "ciphers": ("aes128-gcm@openssh.com", "aes128-ctr"),
    "key_types": ("ssh-ed25519", "ecdsa-sha2-nistp256"),
}


def prefer_fast(transport: Transport) -> None:
    """Offer the preferred algorithms first."""
    security = transport.get_security_options()
    for kind, preferred in PREFERRED.items():
        offered: tuple[str, ...] = getattr(security, kind)
        first = [name for name in preferred if name in offered]
        setattr(security, kind, [*first, *(name for name in offered if name not in first)])


def fastest_first(keys: list[str]) -> tuple[str, ...]:
    """Host keys, as `type base64`, with the cheapest type first: paramiko asks for a key of the first one's type."""
    return tuple(sorted(keys, key=lambda key: key.partition(" ")[0] != PREFERRED["key_types"][0]))

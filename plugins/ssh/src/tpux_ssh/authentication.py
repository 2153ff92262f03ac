"""Which keys a login tries, in which order; each is read once a process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from paramiko import PKey, SSHException, Transport
from paramiko.auth_strategy import AuthResult, AuthStrategy, InMemoryPrivateKey, SourceResult
from paramiko.config import SSHConfig
from paramiko.ssh_exception import AuthenticationException

from tpux_ssh.keyfiles import KeyFileError, inspect_key


class KeysRejectedError(AuthenticationException):
    """The server took none of the keys.

    Attributes:
        tried: their files.
    """

    def __init__(self, tried: list[Path]) -> None:
        super().__init__("refused")
        self.tried = tried


class KeyAuth(AuthStrategy):
    """Tries tpux's own key, then the user's.

    Paramiko's own way reads each key's file anew for each connection, which for RSA takes 350 ms, and
    takes a broken connection for a refusal.

    Args:
        user: whom to log in as.
        files: the keys, the likeliest first.
    """

    def __init__(self, user: str, files: list[Path]) -> None:
        super().__init__(SSHConfig())
        self._user = user
        self._files = files

    def get_sources(self) -> Iterator[InMemoryPrivateKey]:
        """The keys, each read when its turn comes."""
        return (InMemoryPrivateKey(self._user, load_key(path)) for path in self._files)

    def authenticate(self, transport: Transport) -> AuthResult:
        """Log in.

        Raises:
            KeysRejectedError: no key was good.
            KeyFileError: a key cannot be used.
            SSHException, EOFError, OSError: the connection broke.
        """
        tried = []
        for path in self._files:
            source, result = InMemoryPrivateKey(self._user, load_key(path)), AuthResult(self)
            try:
                result.append(SourceResult(source, source.authenticate(transport)))
            except AuthenticationException as error:
                # paramiko says so too when the server hung up in the middle, or said nothing.
                if not transport.is_active() or "timeout" in str(error):
                    raise EOFError(str(error)) from error
                tried.append(path)
            else:
                return result
        raise KeysRejectedError(tried)


@cache
def load_key(path: Path) -> PKey:
    """The private key in a file.

    Raises:
        KeyFileError: it cannot be used.
    """
    if inspect_key(path).encrypted:
        raise KeyFileError(f"the key {path} has a passphrase", hint="name one without in ssh.private_key")
    try:
        return PKey.from_path(path)
    except (SSHException, OSError, ValueError) as error:
        raise KeyFileError(f"the key {path} cannot be used: {error}") from error

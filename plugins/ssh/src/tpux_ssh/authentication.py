"""Public key authentication: tries the login keys in order, and reads each key file once per process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from paramiko import PKey, SSHException, Transport
from paramiko.auth_strategy import AuthResult, AuthStrategy, InMemoryPrivateKey, SourceResult
from paramiko.config import SSHConfig
from paramiko.ssh_exception import AuthenticationException

from tpux import plain_reason
from tpux_ssh.keyfiles import KeyFileError, inspect_key


class KeysRejectedError(AuthenticationException):
    """The server accepted none of the keys.

    Attributes:
        tried: the private key files.
    """

    def __init__(self, tried: list[Path]) -> None:
        super().__init__("keys rejected")
        self.tried = tried


class KeyAuth(AuthStrategy):
    """Authenticates with the first private key that the server accepts.

    Paramiko's default reads each key file again for every connection (350 ms for an RSA key), and reports a
    lost connection as rejected keys.

    Args:
        user: the login user.
        files: the private key files, most likely first.
    """

    def __init__(self, user: str, files: list[Path]) -> None:
        super().__init__(SSHConfig())
        self._user = user
        self._files = files

    def get_sources(self) -> Iterator[InMemoryPrivateKey]:
        """Yield the keys, reading each one only when it is tried."""
        return (InMemoryPrivateKey(self._user, load_key(path)) for path in self._files)

    def authenticate(self, transport: Transport) -> AuthResult:
        """Log in.

        Returns:
            The result with the accepted key.

        Raises:
            KeysRejectedError: the server accepted none of the keys.
            KeyFileError: a key cannot be used.
            SSHException, EOFError, OSError: the connection was lost.
        """
        tried = []
        for path in self._files:
            source, result = InMemoryPrivateKey(self._user, load_key(path)), AuthResult(self)
            try:
                result.append(SourceResult(source, source.authenticate(transport)))
            except AuthenticationException as error:
                # paramiko raises this also when the server closed the connection or did not respond.
                if not transport.is_active() or "timeout" in str(error):
                    raise EOFError(str(error)) from error
                tried.append(path)
            else:
                return result
        raise KeysRejectedError(tried)


@cache
def load_key(path: Path) -> PKey:
    """Read a private key.

    Raises:
        KeyFileError: the key has a passphrase, or cannot be read.
    """
    if inspect_key(path).encrypted:
        raise KeyFileError(f"the key {path} has a passphrase", hint="set ssh.private_key to a key without one")
    try:
        return PKey.from_path(path)
    except (SSHException, OSError, ValueError) as error:
        raise KeyFileError(f"cannot use the key {path}: {plain_reason(error)}") from error

"""Open the connection to a worker's SSH server, and log in over it, with retries.

It is opened before the libraries for the login are imported, which takes 0.1 s: meanwhile the server begins to answer.
So nothing here imports them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from tpux import HostUnreachableError, plain_reason
from tpux_ssh.address import Target
from tpux_ssh.routes import DirectRoute, Route, RouteStream

if TYPE_CHECKING:
    from fabric import Connection  # type: ignore[import-untyped]


class HandshakeDroppedError(HostUnreachableError):
    """The connection was closed during login, as sshd does when too many logins are in progress (`MaxStartups`)."""


def connect(
    target: Target,
    log_in: Callable[[RouteStream], Connection],
    timeout: float,
    route: Route | None = None,
) -> Connection:
    """Connect and log in; retry up to twice if the connection is lost during login.

    Args:
        target: the server.
        log_in: logs in over an open connection.
        timeout: seconds to wait for the server to accept the connection.
        route: the way to the server; by default a TCP connection.

    Returns:
        An open connection.

    Raises:
        HostUnreachableError: the server is unreachable, or the login failed.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(HandshakeDroppedError),
        stop=stop_after_attempt(3),
        wait=wait_random_exponential(multiplier=0.5, max=4),
        reraise=True,
    )
    return retrying(_connect, target, log_in, timeout, route or DirectRoute())


def _connect(target: Target, log_in: Callable[[RouteStream], Connection], timeout: float, route: Route) -> Connection:
    try:
        stream = route.open(target, timeout)
    except HostUnreachableError:
        route.close()
        raise
    except OSError as error:
        route.close()
        raise _connect_error(error, target, timeout) from error
    try:
        return log_in(stream)
    except BaseException as error:
        stream.close()
        if isinstance(error, HostUnreachableError) and (problem := route.problem()):
            error.message += f" ({problem})"
        route.close()
        raise


def _connect_error(error: OSError, target: Target, timeout: float) -> HostUnreachableError:
    hint = ""
    if isinstance(error, socket.gaierror):
        reason, hint = "host name not found", "check the spelling of the host name"
    elif isinstance(error, TimeoutError):
        reason = f"no response within {timeout:g} s"
    elif isinstance(error, ConnectionRefusedError):
        reason = "connection refused: no SSH server is listening"
    else:
        reason = plain_reason(error)
    return HostUnreachableError(f"{target}: {reason}", hint=hint)

"""Connect to a worker: errors of the transport's plugin say nothing about the worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tpux.errors import HostUnreachableError, TpuxError
from tpux.model.host import Host, OpenHost
from tpux.model.job import Job
from tpux.model.machines import Worker
from tpux.plugin.connect import GuardedHost, open_host
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins
from tpux.remote.calls import StepInterruptedError


class TransportFailedError(HostUnreachableError):
    """The transport's plugin failed. It is called again, without end; the worker is not taken for lost."""


class _Connection(GuardedHost):
    """A connection whose plugin's exceptions, other than TpuxErrors and OSErrors, become `TransportFailedError`.

    Once the step is interrupted, every call but `close` raises `StepInterruptedError`.
    """

    def __init__(
        self, host: Host, worker: Worker, plugins: Plugins, transport: str, interrupted: threading.Event | None
    ) -> None:
        super().__init__(host, worker, plugins, transport)
        self._interrupted = interrupted or threading.Event()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._interrupted.is_set():
            raise StepInterruptedError
        try:
            with super()._guarded():
                yield
        except (TpuxError, OSError) as error:
            if self._interrupted.is_set():
                raise StepInterruptedError from error
            if isinstance(error, PluginError):
                raise TransportFailedError(error.message) from error
            raise

    def close(self) -> None:
        with super()._guarded():
            self._host.close()


def connect(
    plugins: Plugins, transport: str, worker: Worker, job: Job, interrupted: threading.Event | None = None
) -> OpenHost:
    """Connect to a worker.

    Args:
        plugins: the installed plugins.
        transport: the plugin that connects.
        worker: the worker.
        job: the job that it belongs to.
        interrupted: once it is set, calls of the host raise `StepInterruptedError`.

    Raises:
        HostUnreachableError: it does not answer.
        TransportFailedError: the transport's plugin failed.
    """
    try:
        host = open_host(plugins, transport, worker, job)
    except PluginError as error:
        raise TransportFailedError(error.message) from error
    return _Connection(host, worker, plugins, transport, interrupted)

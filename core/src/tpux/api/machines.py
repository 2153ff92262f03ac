"""Machines, for allocators, transports and modules: `from tpux.api import machines`.

Leases say which job uses a machine that tpux did not create, or which user holds it for a while. `clock_rate()` is how
many times as fast as the machine's clock a job's time passes, 1 but for tests. `user()` is the `tpux-user`
of the user's own leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpux.env import clock_rate as clock_rate
from tpux.env import user as user
from tpux.model.host import OpenHost as OpenHost
from tpux.store.leases import HOLD as HOLD
from tpux.store.leases import acquire as acquire
from tpux.store.leases import acquire_all as acquire_all
from tpux.store.leases import end_hold as end_hold
from tpux.store.leases import hold as hold
from tpux.store.leases import holder_of as holder_of
from tpux.store.leases import is_active as is_active
from tpux.store.leases import lease_of as lease_of
from tpux.store.leases import release as release
from tpux.store.leases import store_id as store_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpux.model.host import Host
    from tpux.model.job import Job
    from tpux.model.machines import Allocation, Worker
    from tpux.store.published import Published


def allocation_of(job: Job) -> Allocation | None:
    """Return the machines that a job holds now; None if it holds none, or is not on disk (a dry run's). Since 0.1."""
    from tpux.store import Store

    if not (job.directory / "events.jsonl").exists():
        return None
    return Store().record(job.id, job.user).refresh().machines


def published() -> Published:
    """Return the files that all users of the store can read, each in a directory of its user's own. Since 0.1.

    `write(name, content)` and `remove(name)` change this user's; `read(name)` and `files(directory)` return those of
    all users, with whose they are. What another user has written may be anything. `with changing(name):` holds a lock
    that excludes them. In a store of one user, the files are in its directory.
    """
    from tpux.env import home
    from tpux.store.published import Published

    return Published(home(), home())


def storage_options(job: Job, scheme: str) -> Mapping[str, object]:
    """Return what the job's plugins say about opening URLs of a scheme, such as its credentials. Since 0.1.

    Raises:
        TpuxError: a plugin is not installed, or its hook failed.
    """
    from tpux.lifecycle.checkpoint import options_of
    from tpux.plugin.manager import Plugins

    return options_of(job, Plugins(), scheme)


def connect_through(word: str, worker: Worker, job: Job) -> Host:
    """Open a connection with another transport. For `connect` of a transport that wraps its connections. Since 0.1.

    The call is guarded and validated as one of core's: an error names the transport at fault. `connects_through()` of
    the calling transport's section must return the same name, so that the other one's `resolve`, `preflight` and
    `public_keys` are called.

    Args:
        word: the other transport.
        worker: where to connect to; it may have another address than the worker that `connect` was given.
        job: the job that `connect` was given.

    Raises:
        HostUnreachableError: the worker does not answer.
        TpuxError: the transport is not installed, not declared or failed.
    """
    from tpux.plugin import connect

    return connect.connect_through(word, worker, job)

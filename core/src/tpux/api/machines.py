"""Machines, for allocators, transports and modules: `from tpux.api import machines`.

Leases say which job uses a machine that tpux did not create. `clock_rate()` is how many times as fast as the machine's
clock a job's time passes, 1 but for tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpux.env import clock_rate as clock_rate
from tpux.plugin.connect import connect_through as connect_through
from tpux.store.leases import acquire as acquire
from tpux.store.leases import acquire_all as acquire_all
from tpux.store.leases import holder_of as holder_of
from tpux.store.leases import is_active as is_active
from tpux.store.leases import release as release
from tpux.store.leases import store_id as store_id

if TYPE_CHECKING:
    from tpux.model.job import Job
    from tpux.model.machines import Allocation


def allocation_of(job: Job) -> Allocation | None:
    """Return the machines that a job holds now; None if it holds none, or is not on disk (a dry run's). Since 0.1."""
    from tpux.store import Store

    if not (job.directory / "events.jsonl").exists():
        return None
    return Store().record(job.id, job.user).refresh().machines

"""What became of the machines: the allocator's word, and which failure it stands for."""

from __future__ import annotations

import logging

from tpux import hookspecs
from tpux.errors import TpuxError
from tpux.failures import Failure, FailureKind
from tpux.lifecycle.work import Work
from tpux.machines import Machines

_log = logging.getLogger(__name__)


def look_at_machines(work: Work) -> Machines:
    """What the allocator says about the machines now; `unknown` where it could not say."""
    try:
        answer = work.ask_allocator(hookspecs.inspect)
    except TpuxError as error:
        _log.warning("job %s: %s", work.state.id, error)
        answer = Machines("unknown", evidence=str(error))
    if answer.condition != "unknown":
        work.unknown_since = None
    elif work.unknown_since is None:
        work.unknown_since = work.clock.now()
    return answer


def undecided(work: Work) -> bool:
    """Whether the allocator could not say, and may still be waited for: `watch.lost_after` seconds at the most."""
    since = work.unknown_since
    return since is not None and work.clock.now() - since < work.job.watch.lost_after


def machines_failure(work: Work, machines: Machines) -> Failure | None:
    """The failure that the machines' state stands for, if any: never from an unknown answer."""
    spot = work.job.tpu.pricing != "ondemand"
    kinds: dict[str, FailureKind] = {
        "preempted": "preempted",
        "maintenance": "maintenance",
        "gone": "preempted" if spot else "host-lost",
    }
    kind = kinds.get(machines.condition)
    return None if kind is None else Failure(kind, evidence=machines.evidence, at=work.clock.now())

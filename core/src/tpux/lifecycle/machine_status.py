"""What became of the machines: the allocator's word, and which failure it stands for."""

from __future__ import annotations

import logging

from tpux.errors import TpuxError
from tpux.lifecycle.context import JobContext
from tpux.plugin import spec
from tpux.plugin.failures import Failure, FailureKind
from tpux.plugin.machines import MachineStatus

_log = logging.getLogger(__name__)


def inspect_machines(context: JobContext) -> MachineStatus:
    """What the allocator says about the machines now; `unknown` where it could not say."""
    try:
        answer = context.call_allocator(spec.inspect)
    except TpuxError as error:
        _log.warning("job %s: %s", context.state.id, error)
        answer = MachineStatus("unknown", evidence=str(error))
    if answer.state != "unknown":
        context.unknown_since = None
    elif context.unknown_since is None:
        context.unknown_since = context.clock.now()
    return answer


def within_unknown_grace(context: JobContext) -> bool:
    """Whether the allocator could not say, and may still be waited for: `watch.lost_after` seconds at the most."""
    since = context.unknown_since
    return since is not None and context.clock.now() - since < context.job.watch.lost_after


def machines_failure(context: JobContext, machines: MachineStatus) -> Failure | None:
    """The failure that the machines' state stands for, if any: never from an unknown answer."""
    spot = context.job.tpu.pricing != "ondemand"
    kinds: dict[str, FailureKind] = {
        "preempted": "preempted",
        "maintenance": "maintenance",
        "gone": "preempted" if spot else "host-lost",
    }
    kind = kinds.get(machines.state)
    return None if kind is None else Failure(kind, evidence=machines.evidence, at=context.clock.now())

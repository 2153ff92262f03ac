"""Wait until a TPU has reached a state, for the commands that create, start, stop and delete one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from tpux import TpuxError
from tpux.api import clock_rate, say
from tpux.helpers import Backoff
from tpux_gcp.api import Api
from tpux_gcp.errors import CloudError, from_status
from tpux_gcp.lookup import FoundTpu, cli_errors
from tpux_gcp.resource import LOST, Location

POLL = Backoff(first=1.0, cap=15.0, factor=1.5)
"""Between two polls."""


def wait_for(state: Callable[[], str | None], *, timeout: float) -> None:
    """Poll until `state` returns None; print each change.

    Raises:
        TpuxError: the timeout has passed.
    """
    rate, printed = clock_rate(), ""
    deadline = time.monotonic() + timeout / rate
    for poll in itertools.count():
        if (current := state()) is None:
            return
        if current != printed:
            say(current)
        printed = current
        if time.monotonic() > deadline:
            raise TpuxError(
                f"timed out after {timeout:.0f} s: {current}",
                hint="it continues in the cloud: `tpux tpu status` shows its state",
            )
        time.sleep(POLL.delay(poll) / rate)


def state_unless_ready(api: Api, location: Location, name: str, operation_name: str, *, queue: bool) -> str | None:
    """Return the state of a new TPU, None once it is ready.

    Raises:
        CloudError: it cannot become ready.
    """
    resource = api.tpu(location, name, queue=queue)
    if resource is None:
        operation = api.operation(operation_name)
        if operation is not None and operation.code:
            raise CloudError(from_status(operation.code, operation.message, api.project))
        return f"{name} is requested"
    if resource.status in LOST:
        code, message = resource.error or (13, resource.state)
        raise CloudError(from_status(code, message, api.project))
    return None if resource.status == "ready" else resource.state


def state_of(api: Api, found: FoundTpu, *, delete: bool = False) -> str | None:
    """Return the current state, None if the TPU no longer exists.

    Args:
        api: the API.
        found: the TPU.
        delete: repeat the deletion if the API ignored it, as it may in some states.
    """
    with cli_errors():
        try:
            resource = api.tpu(found.location, found.name, queue=bool(found.resource.queued_resource))
        except CloudError as error:
            if error.problem.kind not in {"transient", "throttled"}:
                raise
            return str(error)
        if delete and resource is not None and resource.status != "deleting":
            api.delete(found.location, resource)
    return None if resource is None else resource.state

"""Whether a job's TPU exists. A creation may have succeeded although no response came, and the API may show it late."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tpux_gcp.errors import Problem, from_status
from tpux_gcp.request import UNANSWERED_FOR, RequestContext
from tpux_gcp.resource import LOST, TpuResource

# Seconds. A created TPU may stay invisible this long before it counts as lost.
INVISIBLE_FOR = 120.0
POLL, MAX_CREATION_POLL = 1.0, 15.0
# A node of an ACTIVE queued resource is missing once it was found absent twice, this long apart.
MISSING_FOR = 60.0
MISSING_FILE = "missing-nodes.json"
"""In the job's directory: since when each node was found absent. `inspect` notes it too, and has no saved state."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exists:
    """What exists under the TPU's name."""

    resource: TpuResource


@dataclass(frozen=True)
class MayAppear:
    """Nothing exists, and a creation that was sent may still take effect.

    Attributes:
        why: what is known of the creation, as shown to the user.
        poll_after: seconds until the next look.
        ends_within: seconds after which it cannot take effect any more; None while its operation is running.
    """

    why: str
    poll_after: float
    ends_within: float | None = None


@dataclass(frozen=True)
class Absent:
    """Nothing exists, and no creation that was sent can take effect any more.

    Attributes:
        failure: why the creation failed, None if it did not or is not known.
    """

    failure: Problem | None = None


def look_up(context: RequestContext) -> tuple[RequestContext, Exists | MayAppear | Absent]:
    """Find out whether the TPU exists. All that a job does with a TPU depends on this answer.

    The resource is asked for, then the operation of its creation. The TPU may appear between these two calls, so when
    the operation has ended the resource is asked for again before `Absent` is answered. Only a TPU that was seen, and
    does not exist any more, cannot appear.

    Returns:
        The context with what is known of the creation, and the answer.

    Raises:
        CloudError: a call failed; what exists is unknown.
    """
    if (resource := context.get_resource()) is not None:
        return context, Exists(_doubt_missing(context, resource))
    _note_missing(context.request.directory / MISSING_FILE, {})  # nodes that are created later are others
    if not context.was_sent:
        return context, Absent()
    context, pending = _follow_creation(context)
    if isinstance(pending, MayAppear) or context.saved.observed_state:
        return context, pending
    resource = context.get_resource()
    return context, pending if resource is None else Exists(_doubt_missing(context, resource))


def _doubt_missing(context: RequestContext, resource: TpuResource) -> TpuResource:
    """Return the resource, as one to wait for while a node of it was not found absent twice over a minute.

    To replace it takes all its nodes away, which may cost hours.
    """
    path, now = context.request.directory / MISSING_FILE, context.now
    if not resource.missing and not path.exists():
        return resource
    noted = _read_times(path)
    names = [context.saved.location.node(name) for name in resource.missing]
    since = {name: min(noted.get(name, now), now) for name in names}  # the clock was set back
    if since != noted or not since:
        _note_missing(path, since)
    if any(now - each >= MISSING_FOR for each in since.values()) or not since:
        return resource
    return replace(resource, status="creating", state=f"{resource.state}; asking again for a minute")


def _note_missing(path: Path, since: dict[str, float]) -> None:
    try:
        if not since:
            path.unlink(missing_ok=True)
            return
        new = path.with_suffix(".new")
        new.write_text(json.dumps(since), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        _log.warning("cannot note which nodes are missing: %s", error)


def is_doubtful(resource: TpuResource) -> bool:
    """Return True of a resource whose nodes were not seen and may exist: with them, so may the claim of another store.

    A queued resource in a state that is not known has no nodes here, whichever it has.
    """
    unseen = bool(resource.missing) or (resource.unknown and not resource.nodes)
    return unseen and resource.status not in LOST


def _read_times(path: Path) -> dict[str, float]:
    """Return what `_doubt_missing` has noted; nothing if it cannot be read, and the minute begins anew."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        return {str(name): float(at) for name, at in json.loads(path.read_text(encoding="utf-8")).items()}
    return {}


def _follow_creation(context: RequestContext) -> tuple[RequestContext, MayAppear | Absent]:
    """Return whether the creation of a TPU that does not exist may still take effect."""
    api, now, name = context.api, context.now, f"{context.name} in {context.saved.zone}"
    context = context.update(errors=0, sent_at=min(context.saved.sent_at, now))  # the clock was set back
    if not context.saved.operation:  # it was not answered; the API may list it
        target = context.saved.location.queued_resource if context.queue else context.saved.location.node
        context = context.update(operation=api.running_creation(context.saved.location, target(context.name)))
    saved, failure = context.saved, None
    if saved.operation and (operation := api.operation(saved.operation)) is not None:
        if not operation.done:
            return context, MayAppear(f"{name}: creation in progress", poll_after(context.observed_for))
        if operation.code:
            failure = from_status(operation.code, operation.message, saved.project)
    if failure is not None or saved.observed_state:
        return context, Absent(failure)
    if saved.operation:  # it has succeeded, or the API has forgotten it
        context = context.update(absent_since=min(saved.absent_since or now, now))
        since, limit, what = context.saved.absent_since, INVISIBLE_FOR, "has ended, and it is not visible yet"
    else:
        since, limit, what = saved.sent_at, UNANSWERED_FOR, "was not answered, and may still take effect"
    if (left := since + limit - now) <= 0:
        return context, Absent()
    return context, MayAppear(f"the creation of {name} {what}", min(poll_after(now - since), left), left)


def poll_after(waited: float, longest: float = MAX_CREATION_POLL) -> float:
    """Return the seconds until the next poll: soon after a change, less often the longer nothing changes."""
    return min(longest, max(POLL, waited / 4))

"""`tpux tpu delete`, `start`, `stop`."""

from __future__ import annotations

from collections.abc import Callable

import typer

from tpux import UsageError
from tpux_gcp import facade
from tpux_gcp.api import Api
from tpux_gcp.cli.common import Name, NoWait, Project, Timeout, Yes, Zone, confirm, say, wait_for
from tpux_gcp.facade import Found, api_of, find, told, zone_of
from tpux_gcp.problems import CloudError
from tpux_gcp.things import look


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: tpux tpu delete my-tpu --zone us-central2-b -y")(delete)
    app.command(epilog="Example: tpux tpu start my-tpu --zone us-central2-b")(start)
    app.command(epilog="Example: tpux tpu stop my-tpu --zone us-central2-b")(stop)


def delete(
    name: Name,
    zone: Zone = None,
    project: Project = None,
    yes: Yes = False,
    no_wait: NoWait = False,
    timeout: Timeout = 900,
) -> None:
    """Delete a TPU: a queued resource with its nodes, or a node."""
    api = api_of(project)
    found = find(api, name, zone_of(zone))
    job = found.thing.labels.get("tpux-job")
    of_job = f", the TPU of job {job} of {found.thing.labels.get('tpux-user')}" if job else ""
    confirm(f"Delete {name} in {found.place.zone} of project {api.project}{of_job}?", yes=yes)
    delete_and_wait(api, found, timeout=0 if no_wait else timeout)


def delete_and_wait(api: Api, found: Found, *, timeout: float) -> None:
    """Delete a TPU and wait until the cloud says that it is gone; with a timeout of 0 it only begins."""
    if found.thing.stand != "leaving":
        facade.delete(api, found)
    if timeout:
        wait_for(lambda: _state(api, found, again=True), timeout=timeout)
    say(f"{'deleted' if timeout else 'deleting'} {found.name} in {found.place.zone}")


def start(
    name: Name, zone: Zone = None, project: Project = None, no_wait: NoWait = False, timeout: Timeout = 900
) -> None:
    """Start a stopped TPU of one worker."""
    _turn(name, zone, project, no_wait, timeout, verb="start", end="READY")


def stop(
    name: Name, zone: Zone = None, project: Project = None, no_wait: NoWait = False, timeout: Timeout = 900
) -> None:
    """Stop a TPU of one worker; its disk is kept. Slices of several workers cannot be stopped, only deleted."""
    _turn(name, zone, project, no_wait, timeout, verb="stop", end="STOPPED")


def _turn(
    name: str, zone: str | None, project: str | None, no_wait: bool, timeout: float, *, verb: str, end: str
) -> None:
    api = api_of(project)
    found = find(api, name, zone_of(zone))
    if len(found.thing.nodes) != 1 or found.thing.workers > 1:
        raise UsageError(f"cannot {verb} {name}: {found.thing.state}", hint="only a node of one worker can be")
    node = found.thing.nodes[0].name
    act: Callable[..., str] = api.start_node if verb == "start" else api.stop_node
    try:
        act(found.place, node)
    except CloudError as error:
        raise told(error) from error
    if not no_wait:
        wait_for(lambda: _unless(end, api, found), timeout=timeout)
    say(f"{name} in {found.place.zone}: {verb}{'ping' if verb == 'stop' else 'ing'}" if no_wait else f"{name} is {end}")


def _unless(end: str, api: Api, found: Found) -> str | None:
    state = _state(api, found)
    return None if state is not None and state.endswith(f" is {end}") else state or f"{found.name} is gone"


def _state(api: Api, found: Found, *, again: bool = False) -> str | None:
    """The state now, None where it is gone; `again` asks for its end again where it has come to a rest."""
    try:
        thing = look(api, found.place, found.name, queue=bool(found.thing.queued))
    except CloudError as error:
        if error.problem.kind not in {"transient", "throttled"}:
            raise told(error) from error
        return str(error)
    if again and thing is not None and thing.stand != "leaving":
        facade.delete(api, Found(found.name, found.place, thing))
    return None if thing is None else thing.state

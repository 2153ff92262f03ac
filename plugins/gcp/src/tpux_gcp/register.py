"""`tpux tpu register`, `alias` and `unregister`: which TPUs a pool may take, and what they are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from tpux import UsageError
from tpux.api import say
from tpux_gcp.api import Api
from tpux_gcp.errors import CloudError
from tpux_gcp.labels import JOB, label_value
from tpux_gcp.lookup import FoundTpu, cli_errors, find, look_again, open_api, zone_or_default
from tpux_gcp.registered import POOL, Registered, find_registered, registered, require_own
from tpux_gcp.registered import register as register_
from tpux_gcp.registered import unregister as unregister_

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the TPU or of its queued resource.")]
Known = Annotated[str, typer.Argument(metavar="ALIAS", help="Alias or name of a registered TPU.")]


def register(api: Api, name: str, zone: str | None, alias: str | None, pool: str | None) -> None:
    """Register a TPU, and give it the label of a pool.

    Raises:
        UsageError: there is no such TPU, a job created it, or the alias or the pool's name is not valid.
        TpuxError: the API failed.
    """
    found = find(api, name, zone_or_default(api, zone))
    if (listed := look_again(api, found)) is not None:  # the node of a queued resource is listed as that
        found, name = listed, listed.name
    if JOB in found.resource.labels:
        job = found.resource.labels[JOB]
        raise UsageError(
            f"TPU {name} is that of job {job.lstrip('0')}", hint="only a TPU that belongs to no job can be"
        )
    if pool is not None and (not pool or label_value(pool) != pool):
        raise UsageError(
            f"{pool!r} cannot be the name of a pool", hint="lower-case letters, digits, _ and - are allowed"
        )
    known = next((one for one in registered() if (one.name, one.zone) == (name, found.location.zone)), None)
    called = alias or (known.alias if known else name)
    register_(Registered(name, found.location.zone, api.project, called))
    if pool is not None:
        _label(api, found, {**found.resource.labels, POOL: pool})
    say(f"registered {name} in {found.location.zone} as {called}{f', in the pool {pool}' if pool else ''}")


def set_alias(word: str, alias: str) -> None:
    """Give a registered TPU another alias.

    Raises:
        UsageError: there is no such TPU, or the alias is not valid or another TPU's.
    """
    if (known := find_registered(word)) is None:
        raise UsageError(f"no TPU {word} is registered", hint=f"tpux tpu register {word} --alias {alias}")
    register_(Registered(known.name, known.zone, known.project, alias))
    say(f"{known.name} in {known.zone} is {alias}")


def unregister(word: str) -> None:
    """Forget a registered TPU, and remove the label of its pool; one that no longer exists is only forgotten.

    Raises:
        UsageError: there is no such TPU.
        TpuxError: the API failed.
    """
    if (known := find_registered(word)) is None:
        raise UsageError(f"no TPU {word} is registered", hint="`tpux find` shows those that are")
    require_own(known)
    api = open_api(known.project)
    try:
        found = find(api, known.name, known.zone)
    except UsageError:
        found = None
    if found is not None and POOL in found.resource.labels:
        _label(api, found, {key: value for key, value in found.resource.labels.items() if key != POOL})
    unregister_(word)
    say(f"{known.name} in {known.zone} is no longer registered")


def _label(api: Api, found: FoundTpu, labels: Mapping[str, str]) -> None:
    if not found.resource.nodes:
        raise UsageError(f"TPU {found.name} cannot get a label: {found.resource.state}")
    with cli_errors():
        try:
            api.update_node(found.location, found.resource.nodes[0].name, "labels", labels)
        except CloudError as error:
            if error.problem.kind != "forbidden":
                raise
            hint = "grant tpu.nodes.update (roles/tpu.admin)"
            raise UsageError(f"the account may not change the labels of TPU {found.name}", hint=hint) from error

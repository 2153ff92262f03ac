"""The machines, once the API says that they are ready: their workers, and our public keys on them."""

from __future__ import annotations

import logging

from tpux import Allocation, Waiting, Worker
from tpux_gcp import spec
from tpux_gcp.errand import Errand
from tpux_gcp.problems import CloudError, Problem, of_status
from tpux_gcp.things import Thing
from tpux_gcp.views import NodeView

_log = logging.getLogger(__name__)


def allocation(errand: Errand, thing: Thing) -> Allocation:
    """The machines as core holds them: the workers of all slices, in the order of the nodes."""
    workers: list[Worker] = []
    for number, node in enumerate(thing.nodes):
        keys = _host_keys(errand, node)
        for endpoint, key in zip(node.endpoints, keys, strict=True):
            address = endpoint.internal if errand.tpu.internal_ips or not endpoint.external else endpoint.external
            details = {"host_keys": key} if key else {}
            workers.append(Worker(len(workers), number, address, endpoint.internal, details))
    return Allocation(
        name=errand.name,
        transport="ssh",
        workers=tuple(workers),
        slices=len(thing.nodes),
        zone=errand.memo.zone,
        borrowed=errand.memo.borrowed,
    )


def _host_keys(errand: Errand, node: NodeView) -> list[str]:
    """Each worker's host keys, one `TYPE KEY` a line; empty where the API has none: ssh then trusts the first."""
    nothing = [""] * len(node.endpoints)
    try:
        published = errand.api.host_keys(errand.memo.place, node.name)
    except CloudError as error:
        _log.info("no host keys of %s: %s", node.name, error)
        return nothing
    if len(published) != len(nothing):
        return nothing
    return ["\n".join(f"{kind} {key}" for kind, key in sorted(keys.items())) for keys in published]


def put_keys(errand: Errand, thing: Thing) -> Waiting | None:
    """Put the public keys that are missing into the metadata of nodes, one after the other; None once all are there.

    Raises:
        RefusedError: the nodes demand OS Login.
        CloudError: the API refused, or did not answer.
    """
    keys, memo = errand.request.public_keys, errand.memo
    if not keys:
        return None
    if memo.patch and (operation := errand.api.operation(memo.patch)) is not None:
        if not operation.done:
            return errand.wait(f"putting keys on {errand.name}", 1)
        if operation.code:
            problem = of_status(operation.code, operation.message, memo.project)
            return errand.remember(patch="").trouble(Problem("transient", problem.message))
    for node in thing.nodes:
        metadata = dict(node.metadata)
        spec.refuse_os_login(metadata, f"the metadata of {node.name}")
        if not set(keys) <= set(metadata.get(spec.SSH_KEYS, "").splitlines()):
            patch = errand.api.set_metadata(memo.place, node.name, spec.with_keys(metadata, keys))
            return errand.remember(patch=patch).wait(f"putting keys on {node.name}", 1)
    return None

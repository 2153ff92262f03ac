"""Guest attributes: what the workers published, above all their host keys."""

from __future__ import annotations

from tpux_emulator.api.call import Call
from tpux_emulator.api.messages import GetGuestAttributesRequest, NodeState
from tpux_emulator.api.proto import JsonObject
from tpux_emulator.cloud import nodes
from tpux_emulator.cloud.records import WorkerRecord
from tpux_emulator.errors import invalid, precondition


def get_guest_attributes(call: Call) -> JsonObject:
    """The attributes of some or all workers, one entry a worker, in their order.

    Raises:
        ApiError: 404; 400 for a worker that the node does not have, or a node that is not READY.
    """
    asked = call.body(GetGuestAttributesRequest)
    record = nodes.get(call.cloud, call.name("nodes"))
    if record.state is not NodeState.READY:
        raise precondition(f"Node {call.path['id']} is in state {record.state.value}, not READY.")
    # gcloud asks for all workers with one empty id.
    ids = [worker for worker in asked.worker_ids or [] if worker]
    known = {str(worker.index): worker for worker in record.workers}
    if unknown := [worker for worker in ids if worker not in known]:
        raise invalid(f"Invalid worker id: {unknown[0]}", "worker_ids")
    chosen = [known[worker] for worker in ids] if ids else record.workers
    return {"guestAttributes": [_entry(worker, asked.query_path or "") for worker in chosen]}


def _entry(worker: WorkerRecord, query_path: str) -> JsonObject:
    # The guest environment of Google's images publishes host keys and the host's name.
    published = {f"hostkeys/{kind}": key for kind, key in worker.host_keys.items()}
    published |= {"hostname/hostname": worker.hostname, **worker.guest_attributes}
    items = []
    for path, value in published.items():
        namespace, _, key = path.partition("/")
        if query_path in ("", f"{namespace}/", namespace, path):
            items.append({"namespace": namespace, "key": key, "value": value})
    return (
        {"queryPath": query_path, "queryValue": {"items": [dict(item) for item in items]}}
        if query_path
        else {"queryValue": {"items": [dict(item) for item in items]}}
    )

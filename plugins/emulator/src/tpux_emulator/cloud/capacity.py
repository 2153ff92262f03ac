"""Capacity: stockouts, and the quota that a project has used up, in Google's wordings."""

from __future__ import annotations

from tpux_emulator.cloud import answers
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.fault_rules import Effect, FaultRule
from tpux_emulator.cloud.records import NodeRecord, QueuedRecord
from tpux_emulator.errors import ApiError, Status
from tpux_emulator.messages import Node, QueuedState

# Their nodes are deleted, yet they hold their quota until they are deleted themselves.
_HOLD_QUOTA = (QueuedState.SUSPENDED, QueuedState.FAILED)


def stockout_status(zone: str, form: str) -> Status:
    """Return the error that Google reports when a zone has no capacity.

    Args:
        zone: the zone.
        form: `zone`: the TPU API's wording; `resources`, `pool`: Compute Engine's.
    """
    name = {"resources": "no-resources", "pool": "pool-exhausted"}.get(form, "no-capacity")
    return answers.status(name, zone=zone, project="emulated")


def reject_stockout(cloud: Cloud, zone: str, name: str) -> None:
    """Reject a creation during a stockout in Compute Engine's wording, which comes as the answer itself.

    Raises:
        ApiError: 429 or 503.
    """
    rule = cloud.match_rule(Effect.STOCKOUT, zone=zone, name=name)
    if rule is not None and rule.form != "zone":
        cloud.consume_rule(Effect.STOCKOUT, zone=zone, name=name)
        status = stockout_status(zone, rule.form)
        raise ApiError(status.code, status.message)


def check_quota(cloud: Cloud, zone: str, specs: list[Node], *, spot: bool, queued: bool) -> Status | None:
    """Check new nodes against the quota rules.

    Every node that is not deleted counts, preempted ones included, and the nodes that SUSPENDED and FAILED queued
    resources had.

    Args:
        cloud: the cloud.
        zone: the zone.
        specs: the nodes.
        spot: whether they are spot or preemptible.
        queued: whether they belong to a queued resource.

    Returns:
        The error with which the queued resource fails later; None if it does not, for all other nodes too.

    Raises:
        ApiError: 429.
    """
    for spec in specs:
        generation = cloud.catalog.generation(cloud.catalog.type_of(spec, zone))
        rule = _quota_rule(cloud, zone, generation, spot=spot)
        if rule is None:
            continue
        requested = sum(cloud.catalog.chips(cloud.catalog.type_of(other, zone)) for other in specs)
        if _held(cloud, zone, generation, rule) + requested <= rule.limit:
            continue
        cloud.consume_rule(Effect.QUOTA, zone=zone)
        status = Status(code=8, message=rule.message or _quota_message(rule, zone, generation, spot=spot))
        if queued and rule.form == "exhausted":
            return status
        raise ApiError(status.code, status.message)
    return None


def is_spot(spec: Node) -> bool:
    """Return True for a node that the cloud may preempt."""
    scheduling = spec.scheduling_config
    return bool(scheduling and (scheduling.spot or scheduling.preemptible))


def _quota_rule(cloud: Cloud, zone: str, generation: str, *, spot: bool) -> FaultRule | None:
    rule = cloud.match_rule(Effect.QUOTA, zone=zone)
    if rule is None or rule.generation not in ("", generation):
        return None
    return rule if rule.pricing in ("", "spot" if spot else "ondemand") else None


def _held(cloud: Cloud, zone: str, generation: str, rule: FaultRule) -> int:
    """Return the chips that count against a quota.

    Args:
        cloud: the cloud.
        zone: the zone of the request.
        generation: the TPU generation of the request.
        rule: the quota: for which pricing it is, and whether for a zone or its region.
    """
    held = 0
    holders: list[NodeRecord | QueuedRecord] = [*cloud.nodes.values(), *cloud.queued.values()]
    for record in holders:
        for accelerator_type, spot in _chips_of(cloud, record):
            counts = rule.pricing in ("", "spot" if spot else "ondemand")
            same_place = record.zone == zone or (rule.form != "zone" and _region(record.zone) == _region(zone))
            if same_place and counts and cloud.catalog.generation(accelerator_type) == generation:
                held += cloud.catalog.chips(accelerator_type)
    return held


def _chips_of(cloud: Cloud, record: NodeRecord | QueuedRecord) -> list[tuple[str, bool]]:
    """Return accelerator type and pricing (spot) of each node that a resource holds quota for."""
    if isinstance(record, NodeRecord):
        queued = cloud.queued.get(record.queued_resource or "")
        counted_below = queued is not None and queued.state in _HOLD_QUOTA
        return [] if counted_below else [(record.accelerator_type, record.spot)]
    if record.state not in _HOLD_QUOTA or record.spec.tpu is None:
        return []
    spot = record.spec.spot is not None
    return [
        (cloud.catalog.type_of(spec.node, record.zone), spot)
        for spec in record.spec.tpu.node_spec
        for _ in range(spec.multislice_params.node_count if spec.multislice_params else 1)
    ]


def _quota_message(rule: FaultRule, zone: str, generation: str, *, spot: bool) -> str:
    place = "zone" if rule.form == "zone" else "region"
    name = f"quota-exhausted-{place}" if rule.form == "exhausted" else f"quota-exceeded-{place}"
    quota = f"TPU{generation.upper()}{'Preemptible' if spot else ''}"
    return answers.status(name, quota=quota, limit=rule.limit, zone=zone, region=_region(zone)).message


def _region(zone: str) -> str:
    return zone.rpartition("-")[0]

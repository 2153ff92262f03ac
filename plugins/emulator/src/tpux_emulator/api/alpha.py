"""The creations of the TPU API v2alpha1, whose messages have fields that v2 does not know."""

from __future__ import annotations

from dataclasses import replace

from tpux_emulator.api.call import Method
from tpux_emulator.errors import ApiError, invalid
from tpux_emulator.messages import Node, QueuedResource

MAX_RUN = 7 * 24 * 3600.0
"""The longest run of Flex-start ("Request Cloud TPUs using Flex-start", Cloud TPU documentation)."""


def of_alpha(method: Method) -> Method:
    """Return a method of v2 as v2alpha1 has it."""
    return replace(method, path=method.path.replace("/v2/", "/v2alpha1/", 1), alpha=True)


def checked_node(node: Node, where: str, *, alpha: bool) -> Node:
    """Return a node without what stands for nothing, for a method of v2 or of v2alpha1.

    Raises:
        ApiError: 400 for a field that v2 lacks.
    """
    if not alpha and node.autocheckpoint_enabled is not None:
        raise _unknown("autocheckpointEnabled", where)
    return node


def checked_queued_resource(spec: QueuedResource, *, alpha: bool) -> QueuedResource:
    """Return a queued resource in the words of v2, for a method of v2 or of v2alpha1.

    Raises:
        ApiError: 400 for a field that the version lacks, or a run duration that is not one of Flex-start.
    """
    where = "queued_resource"
    for name, value in (("provisioningModel", spec.provisioning_model), ("runDuration", spec.run_duration)):
        if not alpha and value is not None:
            raise _unknown(name, where)
    for each in spec.tpu.node_spec if spec.tpu else []:
        checked_node(each.node, f"{where}.tpu.node_spec.node", alpha=alpha)
        lacking = "multisliceParams" if alpha else "multiNodeParams"
        if (each.multislice_params if alpha else each.multi_node_params) is not None:
            raise _unknown(lacking, f"{where}.tpu.node_spec")
        each.multislice_params, each.multi_node_params = each.multi_node_params or each.multislice_params, None
    _check_flex_start(spec)
    return spec


def _check_flex_start(spec: QueuedResource) -> None:
    duration = spec.run_duration.max_run_duration if spec.run_duration else None
    if spec.provisioning_model != "FLEX_START":
        if duration:
            raise invalid("A run duration needs the provisioning model FLEX_START.", "queued_resource.run_duration")
        return
    if spec.spot is not None or spec.guaranteed is not None or spec.reservation_name:
        raise invalid("FLEX_START has neither a tier nor a reservation.", "queued_resource.provisioning_model")
    if not duration or not 0 < float(duration[:-1]) <= MAX_RUN:
        message = "FLEX_START needs a max_run_duration of at most 7 days."
        raise invalid(message, "queued_resource.run_duration.max_run_duration")


def _unknown(name: str, where: str) -> ApiError:
    return invalid(f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field.", where)

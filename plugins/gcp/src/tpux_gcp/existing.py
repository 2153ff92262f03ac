"""TPUs that a user names without a job: `tpux ssh NAME` and the like. They are used as they are; nothing is created."""

from __future__ import annotations

from tpux import ProvisionRequest, Ready, TpuxError, UsageError, Waiting
from tpux_gcp.api import Api
from tpux_gcp.errors import START_EMULATOR, CloudError, InvalidConfigError
from tpux_gcp.lookup import FoundTpu, cli_errors, list_tpus
from tpux_gcp.project import Place
from tpux_gcp.provision import add_public_keys, build_allocation, published_or_nothing
from tpux_gcp.request import RequestContext, SavedState
from tpux_gcp.spec import Candidate


def find_machines(request: ProvisionRequest) -> Ready | Waiting | None:
    """Return the ready TPU of the request's name, in any zone; add the public keys to it first.

    Raises:
        TpuxError: no project is known, the API failed, or the TPU is not ready.
    """
    place = Place.from_json(request.resolved)
    if not place.project:
        raise TpuxError(
            "no Google Cloud project in the environment or gcloud's configuration, and no emulator of yours answers",
            hint=f"for a TPU: gcloud config set project PROJECT, or {START_EMULATOR}",
        )
    context = RequestContext.load(request, queue=True)
    if context is None:
        if (found := _find(Api(place), request.name, place.zone)) is None:
            return None
        candidate = Candidate(found.resource.accelerator, found.location.zone)
        saved = SavedState.begin(place, request, candidate)
        return Waiting(f"found {request.name} in {found.location.zone}", 0, saved.to_json())
    with cli_errors():
        resource = context.get_resource()
        if resource is None or resource.status != "ready" or not resource.workers:
            state = resource.state if resource else "it no longer exists"
            raise TpuxError(f"TPU {request.name} cannot be used: {state}", where=context.saved.zone)
        if (waiting := add_public_keys(context, resource)) is not None:
            return waiting
        allocation = build_allocation(context, resource, published_or_nothing)
        return Ready(allocation, context.saved.to_json())


def _find(api: Api, name: str, zone: str) -> FoundTpu | None:
    """Return the TPU of this name in any zone; of several the one in the default zone.

    Raises:
        UsageError: several zones have one, and none of them is the default zone.
        TpuxError: the API failed.
    """
    try:
        every, _ = list_tpus(api, None)
    except (CloudError, InvalidConfigError) as error:
        raise TpuxError(str(error)) from error
    found = [tpu for tpu in every if tpu.name == name]
    if len(found) > 1:
        zones = ", ".join(tpu.location.zone for tpu in found)
        if not (found := [tpu for tpu in found if tpu.location.zone == zone]):
            hint = f"choose one: CLOUDSDK_COMPUTE_ZONE={zones.partition(',')[0]} tpux ssh {name}"
            raise UsageError(f"TPUs called {name} exist in {zones}", hint=hint)
    return found[0] if found else None

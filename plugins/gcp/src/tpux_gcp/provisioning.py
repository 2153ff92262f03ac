"""From nothing to a TPU, one step at a time: what is about to be done is remembered before it is done."""

from __future__ import annotations

from tpux import Denied, ProvisionRequest, Waiting
from tpux_gcp import clock, flags, names, spec, where
from tpux_gcp.api import Api
from tpux_gcp.asking import ask
from tpux_gcp.errand import Answer, Errand, denied
from tpux_gcp.going_on import LONGEST_REST, REST, go_on
from tpux_gcp.memo import Memo
from tpux_gcp.oslogin import refuse_project_os_login
from tpux_gcp.problems import CloudError, RefusedError
from tpux_gcp.releasing import step_towards_nothing

PASSING = ("transient", "throttled", "busy", "exists", "missing")


def provision(request: ProvisionRequest, *, queue: bool) -> Answer:
    """Take one step towards the machines."""
    try:
        errand = Errand.of(request, queue=queue)
        if errand is None:
            return _plan(request)
    except RefusedError as error:
        return Denied(error.failure)
    except CloudError as error:  # nobody has been asked for anything yet
        return Waiting(str(error), REST) if error.problem.kind in PASSING else denied(error.problem)
    try:
        return _PHASES[errand.memo.phase](errand)
    except RefusedError as error:
        return Denied(error.failure)
    except CloudError as error:
        return errand.trouble(error.problem) if error.problem.kind in PASSING else denied(error.problem)


def _plan(request: ProvisionRequest) -> Answer:
    """Find out where, and refuse what cannot work, before anything is asked for."""
    request = flags.in_request(request)
    tpu = request.tpu
    names.node_id(request)
    combinations = spec.candidates(tpu)
    for candidate in combinations:
        spec.node(request, candidate, queued=False)
    endpoint = where.endpoint(tpu.endpoint)
    project = where.project(tpu.project, endpoint)
    memo = Memo(project=project, endpoint=endpoint).turn(0, combinations[0], clock.now())
    if request.public_keys:
        refuse_project_os_login(Api(project, endpoint), tpu)
    return Waiting(f"asking for {memo.candidate}", 0, memo.to_json())


def _give_back(errand: Errand) -> Answer:
    """Make sure that nothing is left of what was asked for; only then go on."""
    left = step_towards_nothing(errand)
    return go_on(errand) if left is None else left


def _resting(errand: Errand) -> Answer:
    memo = errand.memo
    if 0 < (left := memo.rest_until - errand.now) <= LONGEST_REST:
        return errand.search(f"asking again for {memo.candidate} in a while", left)
    return errand.with_memo(memo.turn(memo.at, memo.candidate, errand.now)).wait(f"asking for {memo.candidate}", 0)


_PHASES = {"asking": ask, "giving-up": _give_back, "resting": _resting}

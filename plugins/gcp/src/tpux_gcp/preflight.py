"""What can be looked at before anything is created."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator

from tpux import Finding, Job, Request, TpuSection
from tpux_gcp import labels, spec, validation
from tpux_gcp import project as where
from tpux_gcp.api import Api
from tpux_gcp.errors import CloudError, RefusedError
from tpux_gcp.resource import Place
from tpux_gcp.spec import Candidate, refuse_project_os_login


def preflight(job: Job) -> list[Finding]:
    """Credentials, project, zone, accelerator, version and name; an error is told and the rest is looked at on."""
    findings: list[Finding] = []
    try:
        tpu = validation.applied(job.tpu)
    except RefusedError as error:
        return [_finding(error, "tpu.flags")]
    request = Request(tpu.name or f"{job.name}-{job.id}", tpu, None, {}, (), job.directory)
    _collect(findings, "tpu.name", lambda: validation.node_id(request))
    _collect(findings, "tpu.labels", lambda: labels.labels(request))
    _collect(findings, "tpu.metadata", lambda: spec.metadata(request))
    _collect(findings, "tpu", lambda: _check_cloud(tpu, findings))
    return findings


def _check_cloud(tpu: TpuSection, findings: list[Finding]) -> None:
    combinations = spec.candidates(tpu)
    endpoint = where.endpoint(tpu.endpoint)
    api = Api(where.project(tpu.project, endpoint), endpoint)
    if tpu.reservation not in (None, spec.ANY_RESERVATION) and tpu.allocation_mode == "tpu-vm" and tpu.node_count == 1:
        findings.append(
            Finding(
                "warning",
                f"a node takes any reservation of the project: the API cannot say that it be {tpu.reservation}",
                "tpu.reservation",
                "tpu.allocation_mode: queued-resources can name one",
            )
        )
    refuse_project_os_login(api, tpu)
    zones = api.zones()
    for zone in dict.fromkeys(candidate.zone for candidate in combinations):
        findings += _in_zone(api, tpu, zones, [c for c in combinations if c.zone == zone])


def _in_zone(api: Api, tpu: TpuSection, zones: list[str], wanted: list[Candidate]) -> Iterator[Finding]:
    zone = wanted[0].zone
    if zone not in zones:
        close = closest(zone, zones)
        hint = f"did you mean {close}?" if close else f"there are {', '.join(zones)}"
        yield Finding("error", f"project {api.project} has no TPU zone {zone}", "tpu.zone", hint)
        return
    place = Place(api.project, zone)
    types, versions = api.accelerators(place), api.versions(place)
    for candidate in wanted:
        if candidate.accelerator not in types:
            hint = f"`tpux tpu types --zone {zone}` lists what it has"
            yield Finding("error", f"{zone} has no {candidate.accelerator}", "tpu.accelerator", hint)
            continue
        version = spec.version_of(tpu, candidate.accelerator)
        if version not in versions:
            hint = f"`tpux tpu versions --zone {zone}` lists what it has"
            yield Finding("error", f"{zone} has no runtime version {version}", "tpu.version", hint)
            continue
        yield Finding("ok", f"project {api.project} may ask for {candidate} with {version}", "tpu")


def _collect(findings: list[Finding], where_: str, look: Callable[[], object]) -> None:
    try:
        look()
    except RefusedError as error:
        findings.append(_finding(error, where_))
    except CloudError as error:
        findings.append(Finding("error", error.problem.message, where_, error.problem.hint))


def _finding(error: RefusedError, where_: str) -> Finding:
    return Finding("error", error.failure.evidence, where_, error.failure.hint)


def closest(word: str, choices: Iterable[str]) -> str:
    """The choice that `word` is most likely a misspelling of, empty where none is near."""
    return next(iter(difflib.get_close_matches(word, list(choices), n=1)), "")

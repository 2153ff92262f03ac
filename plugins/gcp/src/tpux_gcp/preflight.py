"""Checks before anything is created: names, labels, credentials, project, zones, accelerators and versions."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tpux import Bucket, Finding, Job, ProvisionRequest
from tpux_gcp import os_login
from tpux_gcp.api import Api
from tpux_gcp.buckets import check_buckets
from tpux_gcp.errors import CloudError, InvalidConfigError
from tpux_gcp.labels import build_labels
from tpux_gcp.project import Place
from tpux_gcp.resource import Location
from tpux_gcp.section import GcpTpuSection
from tpux_gcp.spec import (
    ANY_RESERVATION,
    Candidate,
    check_existing,
    find_candidates,
    runtime_version,
    vm_metadata,
)
from tpux_gcp.validation import apply_flags, check_login, check_values, secrets_in_metadata, tpu_name

LACKING = "tpu.accelerator"
"""The key that findings about a zone without the accelerator name."""


def preflight(job: Job) -> list[Finding]:
    """Check a job's config against the cloud; an error does not stop the remaining checks."""
    findings: list[Finding] = []
    try:
        tpu = apply_flags(job.tpu)
    except InvalidConfigError as error:
        return [_finding(error, "tpu.flags")]
    request = ProvisionRequest(job.tpu_name or job.name, tpu, None, {"tpux-job": job.id}, (), job.directory)
    _collect(findings, "tpu.name", lambda: tpu_name(request))
    _collect(findings, "tpu.labels", lambda: build_labels(request))
    _collect(findings, "tpu.metadata", lambda: vm_metadata(request))
    _collect(findings, "tpu", lambda: check_values(tpu, ()))
    user = job.job.remote_user or _user_of(job)
    _collect(findings, "job.remote_user", lambda: check_login([f"{user}:"]))
    for key in secrets_in_metadata(tpu):
        message = f"tpu.metadata.{key} seems to be a secret: everyone on the VMs and in the project can read it"
        findings.append(Finding("warning", message, "tpu.metadata", "pass it as a secret in env"))
    ssh = job.sections.get("ssh")
    if tpu.internal_ips and not (getattr(ssh, "jump", None) or getattr(ssh, "iap", False)):
        message = "the VMs get no external addresses: tpux must reach their internal ones from this machine"
        hint = (
            "set ssh.jump or ssh.iap, or run tpux in the same network; a login that fails is the failure `unreachable`"
        )
        findings.append(Finding("warning", message, "tpu.internal_ips", hint))
    resolved = job.resolved.get(job.tpu.allocation_mode, {})
    place, account = Place.from_json(resolved), str(resolved.get("login_account") or "")
    _collect(findings, "tpu", lambda: _check_cloud(tpu, job.tpu_name, place, account, findings))
    buckets = [bucket for word in job.modules if word in job.sections for bucket in job.sections[word].buckets()]
    if (url := job.job.output_dir or "").startswith("gs://"):  # written to seldom: in any region
        name = url.removeprefix("gs://").partition("/")[0]
        buckets.append(Bucket(name, "job.output_dir", any_region=True))
    zones = [tpu.zone] if isinstance(tpu.zone, str) else tpu.zone or [place.zone]
    return [*findings, *check_buckets(place, buckets, [zone for zone in zones if zone])]


def _user_of(job: Job) -> str:
    """Return the login user that was found for a config without `job.remote_user`."""
    of_transport = job.resolved.get("ssh", {}).get("user")
    return str(job.resolved.get(job.tpu.allocation_mode, {}).get("login_user") or of_transport or "")


def _check_cloud(tpu: GcpTpuSection, name: str, place: Place, account: str, findings: list[Finding]) -> None:
    candidates = find_candidates(tpu, place.zone)
    api = Api(place)
    if tpu.reservation not in (None, ANY_RESERVATION) and tpu.allocation_mode == "tpu-vm" and tpu.node_count == 1:
        message = f"a node uses any reservation of the project: the API cannot select {tpu.reservation}"
        hint = "set tpu.allocation_mode: queued-resources to select one"
        findings.append(Finding("warning", message, "tpu.reservation", hint))
    enabled = os_login.is_enabled(tpu.metadata)
    if enabled or (enabled is None and os_login.is_enabled_in_project(place)):
        os_login.require_account(account)
        message = f"OS Login is enabled: tpux's public key is imported into the profile of {account}"
        findings.append(Finding("ok", message, "tpu.metadata"))
    zones = api.zones()
    of_zones = [
        finding
        for zone in dict.fromkeys(candidate.zone for candidate in candidates)
        for finding in _check_zone(api, tpu, zones, [c for c in candidates if c.zone == zone])
    ]
    if any(finding.level == "ok" for finding in of_zones):
        of_zones = [_left_out(finding) if finding.where == LACKING else finding for finding in of_zones]
    findings += of_zones
    if name and not any(finding.level == "error" and finding.where == "tpu.name" for finding in findings):
        for zone in dict.fromkeys(candidate.zone for candidate in candidates if candidate.zone in zones):
            _collect(findings, "tpu.name", partial(_check_existing, api, tpu, name, zone, candidates))


def _check_existing(api: Api, tpu: GcpTpuSection, name: str, zone: str, candidates: list[Candidate]) -> None:
    """Check the TPU of the configured name, if there is one: a job would borrow it."""
    queue = tpu.allocation_mode == "queued-resources" or tpu.node_count > 1
    if (resource := api.tpu(Location(api.project, zone), name, queue=queue)) is not None:
        check_existing(tpu, name, candidates, zone, resource)


def _left_out(finding: Finding) -> Finding:
    """Return the warning about a zone without the accelerator, where another one has it."""
    return replace(finding, level="warning", message=f"{finding.message}, and is left out")


def _check_zone(api: Api, tpu: GcpTpuSection, zones: list[str], candidates: list[Candidate]) -> Iterator[Finding]:
    zone = candidates[0].zone
    if zone not in zones:
        close = difflib.get_close_matches(zone, zones, n=1)
        hint = f"did you mean {close[0]}?" if close else f"available are {', '.join(zones)}"
        yield Finding("error", f"project {api.project} has no TPU zone {zone}", "tpu.zone", hint)
        return
    location = Location(api.project, zone)
    types, versions = api.accelerator_types(location), api.runtime_versions(location)
    for candidate in candidates:
        version = runtime_version(tpu, candidate.accelerator)
        if candidate.accelerator not in types:
            hint = f"`tpux tpu types --zone {zone}` lists what is available"
            yield Finding("error", f"{zone} has no {candidate.accelerator}", LACKING, hint)
        elif version not in versions:
            hint = f"`tpux tpu versions --zone {zone}` lists what is available"
            yield Finding("error", f"{zone} has no runtime version {version}", "tpu.version", hint)
        else:
            yield Finding("ok", f"project {api.project} may request {candidate} with {version}", "tpu")


def _collect(findings: list[Finding], key: str, check: Callable[[], object]) -> None:
    try:
        check()
    except InvalidConfigError as error:
        findings.append(_finding(error, key))
    except CloudError as error:
        findings.append(Finding("error", error.problem.message, key, error.problem.hint))


def _finding(error: InvalidConfigError, key: str) -> Finding:
    return Finding("error", error.failure.evidence, key, error.failure.hint)

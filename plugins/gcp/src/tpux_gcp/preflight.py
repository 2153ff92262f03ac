"""Checks before anything is created: names, labels, credentials, project, zones, accelerators, versions and buckets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpux import Finding, Job, ProvisionRequest
from tpux.fields import Bucket
from tpux_gcp.api import Api
from tpux_gcp.borrowing import check_may_claim, check_whole
from tpux_gcp.credentials import GOOGLE_ENDPOINT, Place, call
from tpux_gcp.disk_checks import check_disks
from tpux_gcp.disks import Host
from tpux_gcp.errors import CloudError, InvalidConfigError
from tpux_gcp.labels import build_labels, tpu_name
from tpux_gcp.project import STORAGE_ENDPOINT_VARIABLE
from tpux_gcp.resource import Location
from tpux_gcp.section import GcpTpuSection, apply_flags
from tpux_gcp.spec import (
    ANY_RESERVATION,
    Candidate,
    check_existing,
    check_login,
    check_values,
    os_login_enabled,
    runtime_version,
    vm_metadata,
)
from tpux_gcp.stockout import find_candidates
from tpux_gcp.unattended import check as check_unattended
from tpux_gcp.workers import os_login_enabled_in_project, require_account

if TYPE_CHECKING:
    from requests import Response

LACKING = "tpu.accelerator"
"""The key that findings about a zone without the accelerator name."""
_SECRET_KEY = re.compile(r"token|secret|passw|api[-_]?key|credential|private[-_]?key", re.IGNORECASE)
# Hugging Face, GitHub, AWS, Google, a private key.
_SECRET_VALUE = re.compile(r"\bhf_\w{20}|\bgh[pousr]_\w{20}|\bAKIA[0-9A-Z]{16}|\bAIza[-\w]{35}|PRIVATE KEY-----")
STORAGE_ENDPOINT = "https://storage.googleapis.com"
FIELDS = "location,locationType,customPlacementConfig"
_CONTINENTS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}
"""The multi-regions, and how the names of their regions begin."""
_PAIRS = {
    "NAM4": ("US-CENTRAL1", "US-EAST1"),
    "EUR4": ("EUROPE-NORTH1", "EUROPE-WEST4"),
    "EUR5": ("EUROPE-WEST1", "EUROPE-WEST2"),
    "EUR7": ("EUROPE-WEST2", "EUROPE-WEST3"),
    "EUR8": ("EUROPE-WEST3", "EUROPE-WEST6"),
    "ASIA1": ("ASIA-NORTHEAST1", "ASIA-NORTHEAST2"),
}
"""The predefined dual-regions; others say in their metadata which regions they are."""


_BORROWS = "uses the existing TPU"


def preflight(job: Job) -> list[Finding]:
    """Check a job's config against the cloud; an error does not stop the remaining checks."""
    findings: list[Finding] = []
    try:
        tpu = apply_flags(job.tpu)
    except InvalidConfigError as error:
        return [_finding(error, "tpu.flags")]
    request = ProvisionRequest(job.tpu_name or job.name, tpu, None, {"tpux-job": job.id}, (), job.directory)
    _collect(findings, "tpu.name", lambda: tpu_name(request))
    _collect(findings, "tpu.labels", lambda: build_labels(tpu.labels, request.labels))
    _collect(findings, "tpu.metadata", lambda: vm_metadata(request))
    _collect(findings, "tpu", lambda: check_values(tpu, ()))
    user = job.job.remote_user or _user_of(job)
    _collect(findings, "job.remote_user", lambda: check_login([f"{user}:"]))
    for key in _secrets_in_metadata(tpu):
        message = f"tpu.metadata.{key} seems to be a secret: everyone on the VMs and in the project can read it"
        findings.append(Finding("warning", message, "tpu.metadata", "pass it as a secret in env"))
    ssh = job.sections.get("ssh")
    if tpu.internal_ips and not (getattr(ssh, "jump", None) or getattr(ssh, "iap", False)):
        message = "the VMs get no external addresses: tpux must reach their internal ones from this machine"
        hint = (
            "set ssh.jump or ssh.iap, or run tpux in the same network; a login that fails is the failure `unreachable`"
        )
        findings.append(Finding("warning", message, "tpu.internal_ips", hint))
    if tpu.autocheckpoint and not job.command.require_finished:
        message = "a program that exits with 0 after the SIGTERM of Autocheckpoint counts as finished"
        hint = "let it exit with another code, or set command.require_finished: true"
        findings.append(Finding("warning", message, "tpu.autocheckpoint", hint))
    resolved = job.resolved.get(job.tpu.allocation_mode, {})
    place, account = Place.from_json(resolved), str(resolved.get("login_account") or "")
    _collect(findings, "tpu", lambda: _check_cloud(tpu, job.tpu_name, place, account, findings))
    buckets = [bucket for word in job.modules if word in job.sections for bucket in job.sections[word].buckets()]
    if (url := job.job.output_dir or "").startswith("gs://"):  # written to seldom: in any region
        name = url.removeprefix("gs://").partition("/")[0]
        buckets.append(Bucket(name, "job.output_dir", any_region=True))
    zones = [tpu.zone] if isinstance(tpu.zone, str) else tpu.zone or [place.zone]
    findings += check_buckets(place, buckets, [zone for zone in zones if zone])
    if tpu.existing or any(finding.message.startswith(_BORROWS) for finding in findings):
        return findings
    return [*findings, *check_unattended(place, tpu)]


def _user_of(job: Job) -> str:
    """Return the login user that was found for a config without `job.remote_user`."""
    of_transport = job.resolved.get("ssh", {}).get("user")
    return str(job.resolved.get(job.tpu.allocation_mode, {}).get("login_user") or of_transport or "")


def _secrets_in_metadata(tpu: GcpTpuSection) -> list[str]:
    """Return the keys of `tpu.metadata` that seem to hold a secret: everyone on the VMs can read metadata."""
    return [key for key, v in tpu.metadata.items() if _SECRET_KEY.search(key) or _SECRET_VALUE.search(str(v))]


def _check_cloud(tpu: GcpTpuSection, name: str, place: Place, account: str, findings: list[Finding]) -> None:
    candidates = find_candidates(tpu, place.zone)
    api = Api(place)
    hosts = [Host(each.accelerator, each.zone, tpu.node_count, api.project) for each in candidates]
    findings += check_disks(tpu.data_disks, place, hosts)
    if tpu.reservation not in (None, ANY_RESERVATION) and tpu.allocation_mode == "tpu-vm" and tpu.node_count == 1:
        message = f"a node uses any reservation of the project: the API cannot select {tpu.reservation}"
        hint = "set tpu.allocation_mode: queued-resources to select one"
        findings.append(Finding("warning", message, "tpu.reservation", hint))
    enabled = os_login_enabled(tpu.metadata)
    if enabled or (enabled is None and os_login_enabled_in_project(place)):
        require_account(account)
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
        in_zones = list(dict.fromkeys(candidate.zone for candidate in candidates if candidate.zone in zones))
        _collect(findings, "tpu.name", lambda: findings.append(_find_named(api, tpu, name, in_zones, candidates)))


def _find_named(api: Api, tpu: GcpTpuSection, name: str, zones: list[str], candidates: list[Candidate]) -> Finding:
    """Return which TPU of the configured name the job would use, or that it creates one, which costs money."""
    queue = tpu.allocation_mode == "queued-resources" or tpu.node_count > 1
    for zone in zones:
        if (resource := api.tpu(Location(api.project, zone), name, queue=queue)) is not None:
            check_whole(api, Location(api.project, zone), name, resource)
            check_existing(tpu, name, candidates, zone, resource)
            check_may_claim(api, Location(api.project, zone), resource)
            return Finding("note", f"{_BORROWS} {name} in {zone}", "tpu.name")
    none = f"there is no TPU {name} in {', '.join(zones)}"
    if tpu.existing:
        hint = "`tpux tpu list` shows what exists; without tpu.existing the job creates a TPU"
        return Finding("error", f"{none}, and tpu.existing is true", "tpu.name", hint)
    return Finding("note", f"creates {name}-JOB-...: {none}", "tpu.name", "tpu.existing: true uses existing ones only")


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
        problem = error.problem
        transient = problem.kind in {"transient", "throttled"}  # the job is created, and its supervisor asks again
        said = f"not checked: {problem.message}" if transient else problem.message
        findings.append(Finding("warning" if transient else "error", said, key, problem.hint))


def _finding(error: InvalidConfigError, key: str) -> Finding:
    return Finding("error", error.failure.evidence, key, error.failure.hint)


def check_buckets(place: Place, buckets: Sequence[Bucket], zones: Sequence[str]) -> Iterator[Finding]:
    """Yield what is wrong with buckets. What cannot be asked is a warning: the workers may have other permissions.

    Args:
        place: the credentials. The project of an emulator has no buckets, unless Cloud Storage is emulated too.
        buckets: the buckets.
        zones: where the machines are requested.
    """
    if not place.storage_endpoint and not place.login:
        for bucket in buckets:
            message = f"the bucket {bucket.name} is not checked: the emulator at {place.endpoint} has no Cloud Storage"
            yield Finding(
                "note", message, bucket.where, f"set {STORAGE_ENDPOINT_VARIABLE} to the URL of an emulated one"
            )
        return
    for bucket in buckets:
        try:
            answer = _get(place, bucket.name)
            metadata = answer.json() if answer.ok else {}
        except (CloudError, ValueError) as error:
            message = f"cannot check the bucket {bucket.name}: {error}"
            yield Finding("warning", message, bucket.where)
            continue
        if answer.ok and isinstance(metadata, dict):
            yield from _check_region(bucket, metadata, zones)
        else:
            yield _refused(bucket, answer.status_code, place)


def _get(place: Place, bucket: str) -> Response:
    """Return the answer about a bucket. An emulator of Cloud Storage gets no credentials."""
    endpoint = place.storage_endpoint or STORAGE_ENDPOINT
    asker = replace(place, endpoint=place.storage_endpoint or GOOGLE_ENDPOINT, endpoint_allowed=True)
    return call(asker, "GET", f"{endpoint}/storage/v1/b/{bucket}", params={"fields": FIELDS})


def _refused(bucket: Bucket, status: int, place: Place) -> Finding:
    if status == 404:
        return Finding("error", f"there is no bucket {bucket.name}", bucket.where, "gcloud storage buckets list")
    who = place.account or "your account"
    message = f"{who} may not see in which region the bucket {bucket.name} is (HTTP {status})"
    hint = "the workers use their own service account; to let it be checked, grant storage.buckets.get"
    return Finding("warning", message, bucket.where, hint)


def _check_region(bucket: Bucket, metadata: Mapping[str, object], zones: Sequence[str]) -> Iterator[Finding]:
    location = str(metadata.get("location") or "").upper()
    outside = [zone for zone in dict.fromkeys(zones) if not _covers(location, metadata, zone)]
    if not location or not outside or bucket.any_region:
        yield Finding("ok", f"the bucket {bucket.name} is in {location.lower() or 'a region'}", bucket.where)
        return
    message = f"the bucket {bucket.name} is in {location.lower()}, and the machines are requested in"
    hint = f"use a bucket there, or set {bucket.where.rpartition('.')[0]}.allow_cross_region: true (slow and expensive)"
    yield Finding("error", f"{message} {', '.join(outside)}", bucket.where, hint)


def _covers(location: str, metadata: Mapping[str, object], zone: str) -> bool:
    """Return whether a bucket's location contains the region of a zone."""
    region = zone.rpartition("-")[0]
    placement = metadata.get("customPlacementConfig")
    regions = placement.get("dataLocations") if isinstance(placement, dict) else None
    if isinstance(regions, list):  # a dual-region of the user's own, whose location is the continent
        return region.upper() in regions
    if location in _CONTINENTS:
        return region.startswith(_CONTINENTS[location])
    return region.upper() in _PAIRS.get(location, (location,))

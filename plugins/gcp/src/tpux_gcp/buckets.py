"""Check the buckets of a config: whether they exist, and whether they are in the region of the machines.

Reading a bucket of another region is slow, and each gigabyte costs money.
Source: "Buckets: get" of the Cloud Storage JSON API; "Bucket locations".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpux import Bucket, Finding
from tpux_gcp.errors import CloudError
from tpux_gcp.project import GOOGLE_ENDPOINT, STORAGE_ENDPOINT_VARIABLE, Place
from tpux_gcp.rest import call

if TYPE_CHECKING:
    from requests import Response

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

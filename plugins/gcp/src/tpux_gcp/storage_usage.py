"""`tpux storage usage`: show how many bytes each bucket of a project has, and what they cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import UsageError, api
from tpux.api.text import format_size, print_table
from tpux_gcp.google_client import ask, inner, items, label, pages
from tpux_gcp.lookup import open_api

if TYPE_CHECKING:
    from tpux_gcp.credentials import Place

GIB = 1024**3
BYTES, COUNT = (f"storage.googleapis.com/storage/v2/total_{what}" for what in ("bytes", "count"))
SOFT_DELETED = "soft-deleted-object"
PER_REQUEST = 1000
"""Objects in an answer of Cloud Storage."""
OLD_CLASSES = {"REGIONAL": "STANDARD", "MULTI_REGIONAL": "STANDARD", "DURABLE_REDUCED_AVAILABILITY": "STANDARD"}
IN_REGION = {"STANDARD": 0.020, "NEARLINE": 0.010, "COLDLINE": 0.004, "ARCHIVE": 0.0012}
"""Google's list price of a GiB for a month in the cheapest regions, in USD, by storage class."""
IN_MULTI_REGION = {"STANDARD": 0.026, "NEARLINE": 0.015, "COLDLINE": 0.007, "ARCHIVE": 0.0024}
"""The same in the multi-regions us, eu and asia."""
OF_REGIONS = ("us-central1", "us-central2", "us-east1", "us-east5", "us-south1", "us-west1", "europe-west4")
"""Regions with the prices of IN_REGION; of any other one the price is unknown unless --prices has it."""
PRICES_FROM = "https://cloud.google.com/storage/pricing"


@dataclass(frozen=True)
class Stored:
    """What a bucket has of one storage class and one type.

    Attributes:
        bucket: its name.
        location: where it is, in lower case.
        storage_class: STANDARD, NEARLINE, COLDLINE or ARCHIVE; older names as they are.
        type: live-object, noncurrent-object, soft-deleted-object or multipart-upload.
        bytes: how much it is.
        objects: how many objects, None if that is unknown.
        cost: the price of a month in USD, None if that is unknown.
    """

    bucket: str
    location: str
    storage_class: str
    type: str
    bytes: int
    objects: int | None
    cost: float | None


def show_usage(
    project: str | None, bucket: str | None, prices: Path | None, *, folders: bool, yes: bool, json: bool
) -> None:
    """Print what the buckets of a project have; with `folders` also by their first directory.

    Raises:
        UsageError: there is no bucket of that name, or the user did not confirm the listing.
        TpuxError: an API refuses the call or does not answer.
        ConfigError: the file of prices cannot be read, or is no table of prices.
    """
    table = _read_prices(prices)
    opened = open_api(project)
    found = _read(opened.place, opened.project, table)
    if bucket is not None and not (found := [one for one in found if one.bucket == bucket]):
        hint = "Cloud Monitoring has the figures of a new bucket after a day; tpux storage usage shows all buckets"
        raise UsageError(f"nothing is known of a bucket {bucket} in project {opened.project}", hint=hint)
    if not folders:
        if json:
            api.emit([asdict(one) for one in found])
        else:
            _print(found, opened.project)
        return
    objects = sum(one.objects or 0 for one in found)
    buckets = len({one.bucket for one in found})
    requests = max(buckets, -(-objects // PER_REQUEST))
    what = f"{objects} objects in {_count(buckets, 'bucket')}, {_count(requests, 'request')} that Google charges for"
    api.say(f"it lists {what}")
    api.confirm("list them?", yes=yes)
    sums = dict[tuple[str, str, str], tuple[int, int]]()
    for name in dict.fromkeys(one.bucket for one in found):
        soft = any(one.type == SOFT_DELETED and one.bytes for one in found if one.bucket == name)
        for (folder, kind), (count, size) in _by_folder(opened.place, name, soft_deleted=soft).items():
            sums[name, folder, kind] = count, size
    ordered = sorted(sums.items(), key=lambda item: (item[0][0], -item[1][1]))
    if json:
        keys = ("bucket", "folder", "type", "objects", "bytes")
        api.emit([dict(zip(keys, [*key, *of], strict=True)) for key, of in ordered])
        return
    columns = {
        "bucket": [name for (name, _, _), _ in ordered],
        "folder": [folder for (_, folder, _), _ in ordered],
        "type": [_short(kind) for (_, _, kind), _ in ordered],
        "objects": [str(count) for _, (count, _) in ordered],
        "size": [format_size(size) for _, (_, size) in ordered],
    }
    print_table(columns, always=["bucket", "folder", "size"])


def _read(place: Place, project: str, prices: Mapping[str, float]) -> list[Stored]:
    """Return the newest figures of Cloud Monitoring, which it has about once a day."""
    sizes, counts = _newest(place, project, BYTES), _newest(place, project, COUNT)
    found = []
    for key, size in sizes.items():
        bucket, location, storage_class, kind = key
        count = None if key not in counts else int(counts[key])
        cost = _cost(size, location, storage_class, prices)
        found.append(Stored(bucket, location, storage_class, kind, int(size), count, cost))
    return sorted(found, key=lambda one: (one.bucket, -one.bytes, one.type))


def _newest(place: Place, project: str, metric: str) -> dict[tuple[str, str, str, str], float]:
    now = datetime.now(UTC)
    series = ask(
        place,
        "monitoring",
        "v3",
        "projects.timeSeries",
        "timeSeries",
        name=f"projects/{project}",
        filter=f'metric.type = "{metric}" AND resource.type = "gcs_bucket"',
        interval_startTime=(now - timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        interval_endTime=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    found: dict[tuple[str, str, str, str], float] = {}
    for one in series:
        points = items(one, "points")  # the newest one first
        if points:
            value = inner(points[0], "value")
            where = label(one, "resource", "bucket_name"), label(one, "resource", "location").lower()
            key = (*where, label(one, "metric", "storage_class"), label(one, "metric", "type"))
            found[key] = float(str(value.get("doubleValue", value.get("int64Value", 0))))
    return found


def _cost(size: float, location: str, storage_class: str, prices: Mapping[str, float]) -> float | None:
    name = OLD_CLASSES.get(storage_class, storage_class)
    known = IN_MULTI_REGION if location in {"us", "eu", "asia"} else IN_REGION if location in OF_REGIONS else {}
    given = prices.get(f"{name} {location}", prices.get(name))
    price = known.get(name) if given is None else given
    return None if price is None else price * size / GIB


def _read_prices(path: Path | None) -> Mapping[str, float]:
    from typing import Annotated

    from pydantic import Field, RootModel

    from tpux.fields import read_data_file

    if path is None:
        return {}
    return read_data_file(path, RootModel[dict[str, Annotated[float, Field(strict=True, ge=0)]]]).root


def _print(found: list[Stored], project: str) -> None:
    if not found:
        api.say(f"Cloud Monitoring knows of no bytes in a bucket of project {project}")
        return
    columns = {
        "bucket": [one.bucket for one in found],
        "location": [one.location for one in found],
        "class": [one.storage_class for one in found],
        "type": [_short(one.type) for one in found],
        "size": [format_size(one.bytes) for one in found],
        "usd/month": ["-" if one.cost is None else f"{one.cost:.2f}" for one in found],
    }
    print_table(columns, always=["bucket", "type", "size", "usd/month"])
    known = [one.cost for one in found if one.cost is not None]
    missing = ", without those whose price is unknown: -" if len(known) < len(found) else ""
    total = format_size(sum(one.bytes for one in found))
    api.say(f"together {total}, about {sum(known):.2f} USD a month{missing} ({PRICES_FROM})")


def _by_folder(place: Place, bucket: str, *, soft_deleted: bool) -> Mapping[tuple[str, str], tuple[int, int]]:
    """Return objects and bytes by the first directory and the type; `.` has what is in no directory."""
    sums = defaultdict[tuple[str, str], tuple[int, int]](lambda: (0, 0))
    for one, kind in _objects(place, bucket, soft_deleted=soft_deleted):
        folder, slash, _ = str(one.get("name")).partition("/")
        count, size = sums[folder + slash if slash else ".", kind]
        sums[folder + slash if slash else ".", kind] = count + 1, size + int(str(one.get("size", 0)))
    return sums


def _objects(place: Place, bucket: str, *, soft_deleted: bool) -> Iterator[tuple[Mapping[str, object], str]]:
    fields = "items(name,size,timeDeleted),nextPageToken"
    for page in pages(place, "storage", "v1", "objects", "items", bucket=bucket, versions=True, fields=fields):
        yield from ((one, "noncurrent-object" if one.get("timeDeleted") else "live-object") for one in page)
    if soft_deleted:
        for page in pages(place, "storage", "v1", "objects", "items", bucket=bucket, softDeleted=True, fields=fields):
            yield from ((one, SOFT_DELETED) for one in page)


def _short(kind: str) -> str:
    return kind.removesuffix("-object")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

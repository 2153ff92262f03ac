"""The API's read-only methods: locations, accelerator types, runtime versions."""

from __future__ import annotations

from collections.abc import Callable

from tpux_emulator.api.call import ANY_LOCATION, LOCATION, Call, Method
from tpux_emulator.api.paging import PAGE_PARAMETERS, list_page
from tpux_emulator.errors import invalid, not_found
from tpux_emulator.protojson import JsonObject

# Items by sort key.
Items = list[tuple[str, JsonObject]]


def _location(project: str, zone: str) -> JsonObject:
    return {
        "name": f"projects/{project}/locations/{zone}",
        "locationId": zone,
        "labels": {"cloud.googleapis.com/region": zone.rpartition("-")[0]},
    }


def _get_location(call: Call) -> JsonObject:
    call.cloud.catalog.check_zone(call.zone)
    return _location(call.path["project"], call.zone)


def _list_locations(call: Call) -> JsonObject:
    items = [(zone, _location(call.path["project"], zone)) for zone in call.cloud.catalog.zones]
    return list_page(call, "locations", items)


def _zones(call: Call) -> list[str]:
    if call.zone == ANY_LOCATION:
        return list(call.cloud.catalog.zones)
    call.cloud.catalog.check_zone(call.zone)
    return [call.zone]


def _accelerator_types(call: Call) -> Items:
    catalog, project = call.cloud.catalog, call.path["project"]
    return [
        (
            f"{zone} {kind.partition('-')[0]} {int(kind.partition('-')[2]):06}",
            {
                "name": f"projects/{project}/locations/{zone}/acceleratorTypes/{kind}",
                "type": kind,
                "acceleratorConfigs": [catalog.config(kind).to_json(enum_numbers=call.enum_numbers)],
            },
        )
        for zone in _zones(call)
        for kind in catalog.types(zone)
    ]


def _runtime_versions(call: Call) -> Items:
    project = call.path["project"]
    names = [
        (f"projects/{project}/locations/{zone}/runtimeVersions/{version}", version)
        for zone in _zones(call)
        for version in call.cloud.catalog.runtime_versions
    ]
    return [(name, {"name": name, "version": version}) for name, version in names]


def _list_items(key: str, items: Callable[[Call], Items]) -> Callable[[Call], JsonObject]:
    def run(call: Call) -> JsonObject:
        if call.query.get("filter") or call.query.get("orderBy"):
            raise invalid("The emulator does not support filter and orderBy for this list.", "filter")
        return list_page(call, key, items(call))

    return run


def _get_item(key: str, items: Callable[[Call], Items]) -> Callable[[Call], JsonObject]:
    def run(call: Call) -> JsonObject:
        name = call.name(key)
        for _, item in items(call):
            if item["name"] == name:
                return item
        raise not_found(name)

    return run


def _collection(key: str, items: Callable[[Call], Items]) -> list[Method]:
    query = PAGE_PARAMETERS | {"filter", "orderBy"}
    return [
        Method(f"{key}.list", "GET", f"{LOCATION}/{key}", _list_items(key, items), query),
        Method(f"{key}.get", "GET", f"{LOCATION}/{key}/{{id}}", _get_item(key, items)),
    ]


METHODS = [
    *_collection("acceleratorTypes", _accelerator_types),
    *_collection("runtimeVersions", _runtime_versions),
    Method("locations.list", "GET", "/v2/projects/{project}/locations", _list_locations,
           PAGE_PARAMETERS | {"filter", "extraLocationTypes"}),
    Method("locations.get", "GET", LOCATION, _get_location),
]  # fmt: skip

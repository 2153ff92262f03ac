"""Reads objects of the Kubernetes API, in which any field may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from tpux import JsonValue

Object = Mapping[str, JsonValue]
POOL = "cloud.google.com/gke-nodepool"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_POD_INDEX = "batch.kubernetes.io/job-completion-index"


def part(thing: Object, *keys: str) -> Object:
    """Return the mapping below these keys, an empty one if there is none."""
    for key in keys:
        found = thing.get(key)
        thing = found if isinstance(found, dict) else {}
    return thing


def text(thing: Object, *keys: str) -> str:
    """Return the text below these keys, "" if there is none."""
    found = part(thing, *keys[:-1]).get(keys[-1])
    return "" if found is None or isinstance(found, (dict, list)) else str(found)


def parts(thing: Object, *keys: str) -> Sequence[Object]:
    """Return the mappings in the list below these keys."""
    found = part(thing, *keys[:-1]).get(keys[-1])
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def condition(thing: Object, name: str) -> Object:
    """Return a condition of the status; an empty mapping if there is none of this type."""
    return next((one for one in parts(thing, "status", "conditions") if one.get("type") == name), {})


def is_true(thing: Object, name: str) -> bool:
    """Return whether a condition has the status True."""
    return condition(thing, name).get("status") == "True"


def words(found: Object) -> str:
    """Return the reason and the message of a condition, or of a state of a container."""
    return ": ".join(filter(None, (text(found, "reason"), text(found, "message"))))


def name_of(thing: Object) -> str:
    """Return the name."""
    return text(thing, "metadata", "name")


def uid_of(thing: Object) -> str:
    """Return the uid."""
    return text(thing, "metadata", "uid")


def is_being_deleted(thing: Object) -> bool:
    """Return whether somebody has deleted it, and it is not gone yet."""
    return bool(text(thing, "metadata", "deletionTimestamp"))


def position(pod: Object) -> tuple[int, int]:
    """Return the number of a pod's slice, and its own number in that; -1 where it is not said."""
    return _number(pod, _JOB_INDEX), _number(pod, _POD_INDEX)


def _number(pod: Object, key: str) -> int:
    found = text(pod, "metadata", "annotations", key) or text(pod, "metadata", "labels", key)
    return int(found) if found.isdigit() else -1


def seconds_of(stamp: str) -> float | None:
    """Return a time of the API in seconds since the epoch."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None

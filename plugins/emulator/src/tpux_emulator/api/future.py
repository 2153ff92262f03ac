"""Answers as a later version of the API may give them: with fields, types and enum values that nobody knows yet.

A client must pass them through, and wait where it does not know a state. What changes is drawn from a seed and the
number of the request, so that a run can be repeated; the state that stands for another one stays the same.
"""

from __future__ import annotations

from random import Random

from pydantic import JsonValue

from tpux_emulator.protojson import JsonObject

_TYPE = "@type"
_OPERATION_TYPES = (
    "google.cloud.common.OperationMetadata",
    "google.cloud.tpu.v2alpha1.OperationMetadata",
    "google.cloud.tpu.v7.OperationMetadata",
)
_NOVELTIES: tuple[JsonValue, ...] = (
    "a text", 7, True, [], [{"novel": "1"}], {_TYPE: "type.googleapis.com/google.cloud.tpu.v7.Novelty", "of": {"x": 1}},
)  # fmt: skip
# States that end by themselves: an unknown one in their place means the same to a client, to wait.
_PASSING = {
    "CREATING", "STARTING", "STOPPING", "RESTARTING", "REIMAGING", "REPAIRING", "ACCEPTED", "WAITING_FOR_RESOURCES",
    "PROVISIONING",
}  # fmt: skip
_UNKNOWN_STATES = ("WARMING_UP", "DEFRAGMENTING", "97")
_UNREADABLE: tuple[JsonValue, ...] = (7, {}, {"id": "12"}, {"name": "nodes/short"}, {"name": {"path": "n"}})
_COLLECTIONS = {"nodes", "queuedResources"}


def change(answer: JsonObject, seed: int, number: int) -> JsonObject:
    """Return an answer with novelties.

    Args:
        answer: the answer, an error too.
        seed: the seed of the emulator's run.
        number: the number of the request.
    """
    return _changed(answer, Random(f"{seed} {number}"), seed)  # noqa: S311  (not for secrets)


def _changed(message: JsonObject, random: Random, seed: int) -> JsonObject:
    found: JsonObject = {}
    for key, value in message.items():
        if key in {"labels", "metadata"} and _TYPE not in (value if isinstance(value, dict) else {}):
            found[key] = value  # a map of the user's, not a message
        elif isinstance(value, dict):
            found[key] = _changed(value, random, seed)
        elif isinstance(value, list):
            items: list[JsonValue] = [
                _changed(each, random, seed) if isinstance(each, dict) else each for each in value
            ]
            if key in _COLLECTIONS:
                items.insert(random.randint(0, len(items)), random.choice(_UNREADABLE))
            found[key] = items
        else:
            found[key] = _scalar(key, value, random, seed)
    if "message" in found and "code" in found:  # a google.rpc.Status
        given = found.get("details")
        novel: JsonObject = {_TYPE: "type.googleapis.com/google.rpc.Novelty", "retryInfo": {"after": "1s"}}
        found["details"] = [5, novel, *(given if isinstance(given, list) else [])]
    if random.random() < 0.7:
        found[f"novelty{random.randint(1, 9)}"] = random.choice(_NOVELTIES)
    return found


def _scalar(key: str, value: JsonValue, random: Random, seed: int) -> JsonValue:
    if key == "state" and value in _PASSING:
        return Random(f"{seed} {value}").choice((value, *_UNKNOWN_STATES))  # noqa: S311
    if key == "health":
        return random.choice((value, "SUPERB", 97))
    if key == _TYPE and isinstance(value, str) and value.endswith("OperationMetadata"):
        return f"type.googleapis.com/{random.choice(_OPERATION_TYPES)}"
    return value

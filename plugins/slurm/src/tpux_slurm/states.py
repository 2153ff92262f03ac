"""What the states of a Slurm job, and the reasons for which it waits, mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

STATES: dict[str, Literal["ready", "preempted", "gone"]] = {
    "RUNNING": "ready",
    "PREEMPTED": "preempted",
    "TIMEOUT": "preempted",
    **dict.fromkeys(
        ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED"), "gone"
    ),
}
"""Of every other state it is unknown whether the nodes are still the job's: a SUSPENDED job runs again later."""
ENDED_BY_SOMEONE = ("CANCELLED",)
LOST_NODES = ("NODE_FAIL", "BOOT_FAIL", "REVOKED")
"""Ended by the nodes, as a preemption is, and not by what ran on them."""
UNKNOWN_JOB = "Invalid job id specified"
NODE_LIMIT = "PartitionNodeLimit"

_REASONS = {
    NODE_LIMIT: "nodes of the partition are down or drained",
    "Resources": "nodes are in use by other jobs",
    "Priority": "other jobs have a higher priority",
    "JobHeldUser": "held by the user",
    "JobHeldAdmin": "held by an administrator",
    "Dependency": "waits for another job",
    "BeginTime": "its begin time has not come",
    "Reservation": "its reservation has not begun",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Licenses": "licenses are in use",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "None": "Slurm has not considered it yet",
}
_NEVER = {
    NODE_LIMIT: "the partition has or allows fewer nodes, or wants more: change tpu.nodes or tpu.partition",
    "PartitionTimeLimit": "the partition's time limit is shorter: change tpu.time",
    "BadConstraints": "no nodes have what it asks for: change tpu.gres, tpu.cpus, tpu.mem or tpu.sbatch",
    "InvalidAccount": "the account is not valid: change tpu.account",
    "AccountNotAllowed": "the partition does not allow the account: change tpu.account or tpu.partition",
    "InvalidQOS": "the quality of service is not valid: change tpu.qos",
    "QOSNotAllowed": "the partition or the account does not allow the quality of service: change tpu.qos",
    "ReservationDeleted": "the reservation is gone: change tpu.sbatch",
    "DependencyNeverSatisfied": "what it waits for has failed: change tpu.sbatch",
}
_OF_ONE_JOB = re.compile(r"(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|QOSMin\w+|MaxMemPerLimit|(Association|QOS)TimeLimit")
"""Limits that this job exceeds by itself. The others pass when other jobs end, or a budget is renewed."""
_LIMIT = re.compile(r"(Assoc|QOS)(Grp|Max)\w+|Max\w+PerAccount|(Association|QOS)(Job|Resource)Limit|QOSUsageThreshold")


def in_words(reason: str) -> str:
    """Return why a job waits."""
    name = reason.split(",")[0].strip("() ")
    words = _REASONS.get(name, "")
    if _LIMIT.fullmatch(name):
        is_budget = name.endswith("Minutes") or "MinutesLimit" in name
        words = f"{'the budget' if is_budget else 'a limit'} of the account or quality of service is reached"
    return f"{words} ({name})" if words else name


def why_never(reason: str) -> str:
    """Return what to change, if the job would wait forever for this reason; "" otherwise."""
    name = reason.split(",")[0].strip("() ")
    if _OF_ONE_JOB.fullmatch(name):
        return (
            "one job may not have so much, or so little: change tpu.time, tpu.nodes, tpu.gres, tpu.account or tpu.qos"
        )
    return _NEVER.get(name, "")


@dataclass(frozen=True)
class SlurmJob:
    """A line of squeue: id, state, reason, nodes and estimated start."""

    id: str
    state: str
    reason: str
    nodes: str
    start: str


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of `scontrol -o show`, of which some have blanks in their values."""
    fields: dict[str, str] = {}
    last = ""
    for word in line.split(" "):
        name, equals, value = word.partition("=")
        if equals and name[:1].isupper():
            last = name
            fields.setdefault(name, value)
        elif last:
            fields[last] += f" {word}"
    return fields

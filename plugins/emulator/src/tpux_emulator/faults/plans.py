"""Planned faults: what will happen to a node at a time that is already known."""

from __future__ import annotations

from enum import Enum

from pydantic import BaseModel


class Deed(str, Enum):
    """What is planned."""

    NOTICE = "notice"  # tell the workers, then preempt or terminate after the notice
    PREEMPT = "preempt"
    TERMINATE = "terminate"
    RESTORE = "restore"  # the network of its workers
    TRUTH = "truth"  # stop lying about its state
    UNSTICK = "unstick"


class Plan(BaseModel):
    """One planned fault.

    Args:
        id: its name in the store.
        at: when, emulated Unix seconds.
        deed: what.
        node: the node's full name.
        uid: the node's id, so that a later node of that name is left alone.
        then: after a notice: PREEMPT or TERMINATE.
        notice: the length of the notice, emulated seconds.
        workers: which workers (restore); empty means all.
    """

    id: str
    at: float
    deed: Deed
    node: str
    uid: int
    then: Deed = Deed.PREEMPT
    notice: float = 0.0
    workers: list[int] = []

"""The settings of the cloud: delays, preemptions, project metadata. Persistent; they can be changed at any time."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tpux.fields import Duration
from tpux_emulator.messages import SymptomType

# Seconds in each transient state. The real service takes minutes.
DEFAULT_DELAYS = {
    "node.CREATING": 1.0,
    "node.STARTING": 0.5,
    "node.STOPPING": 0.5,
    "node.DELETING": 0.5,
    "node.RESTARTING": 0.5,
    "node.REPAIRING": 1.0,
    "node.patch": 0.2,
    "queued-resource.CREATING": 0.2,
    "queued-resource.ACCEPTED": 0.3,
    "queued-resource.WAITING_FOR_RESOURCES": 0.5,
    "queued-resource.PROVISIONING": 0.2,
    "queued-resource.SUSPENDING": 1.0,
    "queued-resource.DELETING": 0.3,
    "queued-resource.retry": 2.0,  # the interval between two attempts to provision during a stockout
}


class NodeEvent(BaseModel):
    """What happens to nodes some time after they become READY.

    Args:
        node: the ids of the nodes (shell pattern).
        event: `preempt`, `terminate`, `maintenance` (a planned one, which the API announces) or `symptom`.
        after: seconds between READY and the notice.
        notice: seconds between the notice and the event.
        symptom: the type of a symptom, such as OUT_OF_MEMORY.
        lives: applies only to the first so many nodes of a name; None means to all.
    """

    model_config = ConfigDict(extra="forbid")
    node: str
    event: Literal["preempt", "terminate", "maintenance", "symptom"]
    after: Duration
    notice: Duration = 0.0
    symptom: SymptomType = "OUT_OF_MEMORY"
    lives: int | None = Field(default=None, ge=1)


class Settings(BaseModel):
    """The settings.

    Args:
        delays: seconds in a state, by `node.STATE` and `queued-resource.STATE`.
        preemptions_per_hour: the mean rate at which a spot or preemptible node is preempted; 0 means never.
        preemption_notice: the notice period of random preemptions, in seconds.
        seed: the seed of random preemptions.
        events: preemptions and terminations some time after READY.
        project_metadata: the compute project's common instance metadata, such as `enable-oslogin`.
        disks: the type, such as `pd-balanced`, of each disk that exists, by `projects/P/zones/Z/disks/D`; None means
            that any does.
        reservations: the names of the reservations that exist; None means that any does.
        page_size: the number of items on a page if the request does not set it.
        future: a seed, from which answers get fields, types and enum values that no client knows yet; None for the API
            as it is.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)
    delays: dict[str, Duration] = Field(default_factory=dict)
    preemptions_per_hour: float = Field(default=0.0, ge=0)
    preemption_notice: Duration = 0.0
    seed: int = 0
    events: list[NodeEvent] = Field(default_factory=list)
    project_metadata: dict[str, str] = Field(default_factory=dict)
    disks: dict[str, str] | None = None
    reservations: list[str] | None = None
    page_size: int = Field(default=500, ge=1, le=1000)
    future: int | None = None

    @field_validator("delays")
    @classmethod
    def _known(cls, delays: dict[str, float]) -> dict[str, float]:
        for key in delays:
            if key not in DEFAULT_DELAYS:
                raise ValueError(f"unknown delay {key!r}; the delays are {', '.join(DEFAULT_DELAYS)}")
        return delays

    def delay(self, key: str) -> float:
        """Return a delay in emulated seconds."""
        return self.delays.get(key, DEFAULT_DELAYS[key])

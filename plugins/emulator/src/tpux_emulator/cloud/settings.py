"""How this cloud behaves: delays, randomness, project metadata. Kept in its state, changed while it runs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tpux_emulator.durations import Seconds

# Seconds that a thing stays in a state. Real ones take minutes; a rehearsal should not.
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
    "queued-resource.retry": 2.0,  # how often a queued resource looks for room again
}


class NodeEvent(BaseModel):
    """What happens to nodes some time after they became READY.

    Args:
        node: which nodes, by id (shell pattern).
        event: `preempt` or `terminate`.
        after: seconds after READY.
        notice: how many seconds before its end the workers are told.
        lives: it happens to the first so many nodes of a name only; None is every one.
    """

    model_config = ConfigDict(extra="forbid")
    node: str
    event: Literal["preempt", "terminate"]
    after: Seconds = Field(ge=0)
    notice: Seconds = Field(default=0.0, ge=0)
    lives: int | None = Field(default=None, ge=1)


class Settings(BaseModel):
    """What one may set.

    Args:
        delays: seconds in a state, by `node.STATE` and `queued-resource.STATE`.
        preemptions_per_hour: how often a spot or preemptible node is preempted; 0 is never.
        preemption_notice: the notice that a random preemption gives, in seconds.
        seed: of the random preemptions.
        events: what happens to nodes after they became READY.
        project_metadata: the compute project's common instance metadata, such as `enable-oslogin`.
        reservations: names of reservations that exist; None means any.
        page_size: how many items a list answers with when the request does not say.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)
    delays: dict[str, Seconds] = Field(default_factory=dict)
    preemptions_per_hour: float = Field(default=0.0, ge=0)
    preemption_notice: Seconds = Field(default=0.0, ge=0)
    seed: int = 0
    events: list[NodeEvent] = Field(default_factory=list)
    project_metadata: dict[str, str] = Field(default_factory=dict)
    reservations: list[str] | None = None
    page_size: int = Field(default=500, ge=1, le=1000)

    @field_validator("delays")
    @classmethod
    def _known(cls, delays: dict[str, float]) -> dict[str, float]:
        for key, value in delays.items():
            if key not in DEFAULT_DELAYS:
                raise ValueError(f"no delay is called {key!r}; there are {', '.join(DEFAULT_DELAYS)}")
            if value < 0:
                raise ValueError(f"the delay {key} is below zero")
        return delays

    def delay(self, key: str) -> float:
        """The delay of that name, in emulated seconds."""
        return self.delays.get(key, DEFAULT_DELAYS[key])

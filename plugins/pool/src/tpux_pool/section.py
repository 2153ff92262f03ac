"""The sections `pool` and `tpu` of a config whose allocator is `pool`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from tpux import Section
from tpux.fields import Duration
from tpux_gcp.section import GcpTpuSection
from tpux_gcp.zones import full_zone

Pricing = Literal["spot", "preemptible", "ondemand"]


class PoolSection(Section):
    """Which TPUs the allocator `pool` may take."""

    source: list[Literal["registered", "cloud"]] = Field(["registered"], alias="from", min_length=1)
    """Those that were registered in this store (tpux tpu register), and those of the project that have the label
    tpux-pool."""
    name: Annotated[str, Field(pattern="^[a-z0-9][-_a-z0-9]{0,62}$")] = "default"
    """The pool: the value of the label tpux-pool of TPUs of the cloud."""
    zones: list[Annotated[str, AfterValidator(full_zone)]] = Field(default_factory=list)
    """The zones of the TPUs, in the order of preference; by default any."""
    pricing: list[Pricing] = Field(default_factory=list)
    """The pricing models of the TPUs; by default any."""


class PoolTpuSection(GcpTpuSection):
    """TPU VMs that other people have created, and that nobody uses now."""

    transferable: ClassVar[bool] = False
    pricing: Pricing = "spot"
    """Whether the job expects a preemption, which job.rule depends on: by default a TPU of the pool may be a spot one;
    pool.pricing chooses among them."""
    keep_on_failure: Duration | None = 600.0
    """How long a failed job keeps its TPU from others, for a resume."""

    @model_validator(mode="after")
    def _deletes_nothing(self) -> PoolTpuSection:
        if self.release == "always":
            raise ValueError("tpu.release: always would delete a TPU of the pool, which others use after this job")
        return self

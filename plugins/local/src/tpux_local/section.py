"""The config sections `local` and `tpu`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from tpux import Section, TpuSection
from tpux.fields import Accelerator, Duration, workers_of


class LocalSection(Section):
    """Workers on this machine."""

    preempt_after: Duration | None = None
    """Simulate a preemption: remove the machines this long after the command starts in the first attempt."""
    preempt_times: Annotated[int, Field(ge=1)] = 1
    """How many times in a row: the machines of each of the first attempts are removed that long after its start."""
    preempt_notice: Duration | None = None
    """Announce the preemption when it is due, as the cloud does, and remove the machines this long after that."""
    preempt_slices: tuple[int, ...] = ()
    """The slices that are removed; all of them by default."""


class LocalTpuSection(TpuSection):
    """The machines, simulated on this one."""

    transport: ClassVar[str] = "local"

    accelerator: Accelerator | list[Accelerator] | None = None
    """The accelerator, such as v4-32, which determines the number of workers; the first one of a list is used."""

    def durable_paths(self) -> list[str]:
        """Return the whole file system, since the job's directory has the output; a preemption deletes only `~`."""
        return ["/"]

    def count_workers(self) -> int:
        """Return the number of workers, 1 per slice without an accelerator."""
        first = self.accelerator[0] if isinstance(self.accelerator, list) else self.accelerator
        return workers_of(first) * self.node_count

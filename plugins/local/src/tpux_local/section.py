"""The config section `local`."""

from __future__ import annotations

from tpux import Duration, Section


class LocalSection(Section):
    """Workers on this machine."""

    preempt_after: Duration | None = None
    """Simulate a preemption: remove the machines this long after the command starts in the first attempt."""

"""The section `local` of a config."""

from __future__ import annotations

from tpux import Duration, Section


class LocalSection(Section):
    """Workers on this machine."""

    preempt_after: Duration | None = None
    """Rehearse a preemption: take the machines away this long after the command's start in the first attempt."""

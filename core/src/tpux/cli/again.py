"""What resume and rerun share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tpux.cli.common import chosen, say
from tpux.errors import UsageError


def start_again(want: Literal["resume", "rerun"], ids: Sequence[str], state: str | None, name: str | None) -> None:
    """Write down that these jobs are wanted again, and see to it that a supervisor hears it.

    Raises:
        UsageError: a job runs already, or has nothing to resume.
    """
    from tpux.lifecycle.creating import restore_secrets
    from tpux.store import Store, wanted
    from tpux.supervisor import spawn

    store = Store()
    records = chosen(store, ids, state=state, name=name)
    for record in records:
        job = record.look()
        if job.state == "succeeded" and want == "resume":
            raise UsageError(f"job {job.id} has succeeded", hint=f"`tpux rerun {job.id}` starts it from scratch")
        if not job.ended and job.state not in {"stopping", "recovering"}:
            raise UsageError(f"job {job.id} is {job.state} already", hint=f"`tpux stop {job.id}` first")
    for record in records:
        if record.look().ended:
            restore_secrets(record)
    for record in records:
        wanted.write(record.directory, want)
    if records:
        spawn.poke(store)
    for record in records:
        job_id = record.directory.name
        say(f"job {job_id} starts again: `tpux logs -f {job_id}` follows it")

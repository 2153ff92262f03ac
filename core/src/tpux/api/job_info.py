"""A job's state at one moment, for scripts and notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.model.failures import Failure
    from tpux.model.machines import Allocation
    from tpux.model.progress import Progress
    from tpux.model.states import JobState
    from tpux.store.record import Record
    from tpux.store.state import State
    from tpux.supervisor.report import Report


@dataclass(frozen=True)
class JobInfo:
    """A job's state at one moment.

    Attributes:
        id: six digits or more.
        user: the owner.
        state: pending, provisioning, setting-up, running, recovering, stopping, stopped, succeeded or failed.
        why: what the job is waiting for, or why it ended; "" if there is nothing to say.
        hint: what the user can do about that; "" if there is nothing.
        ended: whether it is stopped, succeeded or failed.
        done: whether nothing is left to do: it has ended, and no release, transfer or deletion is to follow.
        attempt: the last attempt, 0 before the first.
        stage: how many times it was resumed since it last started from scratch.
        accelerator: as in the config, such as v4-32.
        zone: where the machines are requested, or are.
        workers: the number of workers, 0 if it is not known yet.
        machines: the name of the machines that it holds; None if it holds none.
        failure: the failure of the last attempt, None if there is none.
        since: since when it is in this state, in seconds since the epoch.
        created_at: in seconds since the epoch.
        updated_at: when its last event was written.
        directory: the job's directory on this machine.
        output_dir: TPUX_OUTPUT_DIR of the last attempt, a directory on the workers; "" before the first.
        tags: the words that select it, such as with `tpux list --tag`. Since 0.1.
        progress: how far the program of the last attempt has come, None if that is unknown. Since 0.1.
        config_directory: the directory that has its present config. Since 0.1.
        allocation: the machines that it holds; None if it holds none. Since 0.1.
        release_at: when they are released, in seconds since the epoch; None if no release is scheduled. Since 0.1.
    """

    id: str
    user: str
    name: str
    state: JobState
    why: str
    hint: str
    ended: bool
    done: bool
    attempt: int
    stage: int
    accelerator: str | None
    zone: str | None
    workers: int
    machines: str | None
    failure: Failure | None
    since: float
    created_at: float
    updated_at: float
    directory: Path
    output_dir: str
    tags: tuple[str, ...] = ()
    progress: Progress | None = None
    config_directory: Path = Path()
    allocation: Allocation | None = None
    release_at: float | None = None

    def overrides(self) -> list[str]:
        """Return the words of the command line that its config has, such as `lr=0.1` and `tpu.zone=a`. Since 0.1."""
        from tpux.store import files

        words = (files.load(self.config_directory / "resolved.json") or {}).get("overrides")
        return [*map(str, words)] if isinstance(words, list) else []


def info_of(record: Record, report: Report | None = None) -> JobInfo:
    """Return a job's current state.

    Args:
        record: the job on disk.
        report: what the supervisor says about itself, which may know better what the job waits for; None if unknown.
    """
    from tpux.store import progress
    from tpux.store.tags import load as load_tags

    state: State = record.refresh() if report is None else report.applied_to(record.refresh())
    return JobInfo(
        id=state.id,
        user=state.user,
        name=state.name,
        state=state.state,
        why=state.why,
        hint=state.hint,
        ended=state.ended,
        done=state.done,
        attempt=state.attempt,
        stage=state.stage,
        accelerator=state.accelerator,
        zone=state.zone,
        workers=state.workers,
        machines=state.machines.name if state.machines else None,
        failure=state.failure,
        since=state.since,
        created_at=state.created_at,
        updated_at=state.updated_at,
        directory=record.directory,
        output_dir=state.run.output_dir,
        tags=load_tags(record.directory),
        progress=progress.load(record.directory, state)[0] or None,
        config_directory=record.config_directory,
        allocation=state.machines,
        release_at=state.release_at,
    )

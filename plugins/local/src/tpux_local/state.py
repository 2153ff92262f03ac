"""The allocator's state of one job, stored in machines.json in the same directory as the workers' homes."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tpux import TpuxError

_NAME = "machines.json"


@dataclass(frozen=True)
class AllocationState:
    """The machines of one job.

    Attributes:
        name: the request's name.
        generation: number of times that machines were provisioned; each generation has empty directories.
        status: status of the machines.
        preempt_at: time of the simulated preemption, in seconds since the epoch; None until the command starts.
        announced: it was announced on the workers.
        port: the port for the coordinator of jax.distributed, one that no other job uses.
        lost: with the status `preempted`: the slices that it concerns; all of them if empty.
        kill_at: time to send SIGKILL during a release, in seconds since the epoch; None before it has begun.
    """

    name: str
    generation: int
    status: Literal["ready", "preempted", "released"] = "ready"
    preempt_at: float | None = None
    kill_at: float | None = None
    port: int = 8476
    lost: tuple[int, ...] = ()
    announced: bool = False

    def home(self, directory: Path, worker: int) -> Path:
        """Return the home directory of a worker."""
        return directory / str(self.generation) / f"worker-{worker}"


def load_state(directory: Path) -> AllocationState | None:
    """Return the state stored in a directory, or None if there is none.

    Raises:
        TpuxError: the file is corrupt.
    """
    path = directory / _NAME
    try:
        data = json.loads(path.read_text())
        return AllocationState(**{**data, "lost": tuple(data.get("lost", ()))})
    except FileNotFoundError:
        return None
    except (AttributeError, ValueError, TypeError) as error:
        raise TpuxError(f"invalid allocation state: {error}", where=str(path)) from error


def save_state(directory: Path, state: AllocationState) -> None:
    """Store the state atomically."""
    handle, name = tempfile.mkstemp(dir=directory, prefix=f".{_NAME}.")
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(state), file)
    Path(name).replace(directory / _NAME)

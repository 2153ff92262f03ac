"""What is known of a job's machines, in one file beside their homes."""

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
    """The machines of one request.

    Attributes:
        name: the request's name.
        generation: counts the machines that the job has had: a new one's disk is empty.
        state: what they are.
        preempt_at: when they are taken away, in seconds since the epoch; None where nobody knows yet.
        kill_at: when what is left of their processes gets SIGKILL.
    """

    name: str
    generation: int
    status: Literal["ready", "preempted", "released"] = "ready"
    preempt_at: float | None = None
    kill_at: float | None = None

    def home(self, directory: Path, worker: int) -> Path:
        """The home directory of a worker."""
        return self.homes(directory) / f"worker-{worker}"

    def homes(self, directory: Path) -> Path:
        """The directory of the workers' homes."""
        return directory / str(self.generation)


def load_state(directory: Path) -> AllocationState | None:
    """The state in a request's directory, None where there is none yet.

    Raises:
        TpuxError: it cannot be read.
    """
    path = directory / _NAME
    try:
        return AllocationState(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise TpuxError(f"this is no record of machines: {error}", where=str(path)) from error


def save_state(directory: Path, state: AllocationState) -> None:
    """Replace the state: a reader finds the old one or the new one, whole."""
    handle, name = tempfile.mkstemp(dir=directory, prefix=f".{_NAME}.")
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(state), file)
    Path(name).replace(directory / _NAME)

"""Transport `gke`: a shell in the pod, over one exec that is kept open, as the plugin ssh keeps one over SSH."""

from __future__ import annotations

from tpux import HostUnreachableError, Job, Worker
from tpux_gke.client import client_of
from tpux_gke.execs import OPENING, Exec
from tpux_worker_tools.relay import LOOP, RelayHost


class GkeHost(RelayHost):
    """A pod: one exec, opened at first use, and again when the API server has dropped it.

    Args:
        worker: `details` has the pod's name.
        job: the job that it belongs to, with the cluster that it is in.
    """

    def __init__(self, worker: Worker, job: Job) -> None:
        super().__init__(worker, OPENING)
        self._job = job

    def connect(self) -> Exec:
        """Open an exec."""
        client = client_of(self._job.resolved.get("gke", {}))
        return Exec(client, self.worker.details["pod"], ["/bin/sh", "-c", LOOP, "tpux-session"])

    def unreachable(self, message: str) -> HostUnreachableError:
        """Return the error that names the pod."""
        return HostUnreachableError(f"pod {self.worker.details['pod']}: {message}", where=f"worker {self.worker.index}")

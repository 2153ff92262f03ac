"""Which server and login user stand for a worker, and what `resolve` found when the job was created."""

from __future__ import annotations

from typing import Literal, cast

from tpux import HostUnreachableError, Job, TpuxError, Worker
from tpux_ssh.address import PORT, Target, parse_address
from tpux_ssh.section import section_of


def target_of(worker: Worker, job: Job) -> Target:
    """Return the login target of a worker. Values from the allocator override the config.

    Raises:
        TpuxError: the worker's address is invalid.
    """
    try:
        user, host, port = parse_address(worker.address)
        provided = int(worker.details["port"]) if worker.details.get("port") else None
    except ValueError as error:
        raise TpuxError(str(error), where=f"worker {worker.index}") from error
    return Target(
        host, port or provided or section_of(job).port or PORT, user or worker.details.get("user") or login_user(job)
    )


def jump_target(job: Job) -> Target | None:
    """Return the jump host that `ssh.jump` names, if any; its default user is the local one, as with ssh."""
    if (address := section_of(job).jump) is None:
        return None
    user, host, port = parse_address(address)
    return Target(host, port or PORT, user or resolved(job, "user"))


def iap_command(worker: Worker, job: Job, port: str) -> list[str]:
    """Return the command that connects its standard input and output to a port of a worker, through Google's IAP.

    Args:
        worker: `details` has the names of its `instance`, `project` and `zone`.
        job: the job, whose `resolve` found gcloud and its configuration.
        port: the port of the worker's SSH server.

    Raises:
        HostUnreachableError: the allocator provides no name of an instance.
    """
    details = worker.details
    if not details.get("instance"):
        raise HostUnreachableError(
            "ssh.iap needs the name of the worker's VM, and its allocator provides none",
            where=f"worker {worker.index}",
            hint="TPU VMs publish it as the guest attribute hostname, unless enable-guest-attributes is FALSE",
        )
    variables = cast("dict[str, str]", job.resolved.get("ssh", {}).get("gcloud_environment") or {})
    gcloud = ["env", *(f"{name}={value}" for name, value in variables.items()), resolved(job, "gcloud")]
    place = [f"--project={details.get('project', '')}", f"--zone={details.get('zone', '')}"]
    tunnel = ["compute", "start-iap-tunnel", details["instance"], port, "--listen-on-stdin"]
    return [*gcloud, *tunnel, *place, "--verbosity=warning", "--quiet"]


def login_user(job: Job) -> str:
    """Return the login user: `job.remote_user`, the one that the allocator's `resolve` found, or the local one.

    Raises:
        TpuxError: as `resolved` does.
    """
    return find_login(job) or resolved(job, "user")


def find_login(job: Job) -> str:
    """Return the login user that the config or the allocator's `resolve` names; "" if neither does."""
    found = job.resolved.get(job.tpu.allocation_mode, {}).get("login_user")
    return job.job.remote_user or str(found or "")


def resolved(job: Job, key: Literal["user", "keys", "gcloud"]) -> str:
    """Return what `resolve` found when the job was created.

    Raises:
        TpuxError: it was not called.
    """
    try:
        return str(job.resolved["ssh"][key])
    except KeyError as error:
        allocator = job.tpu.allocation_mode
        message = f"the allocator {allocator} uses the transport ssh, and its tpu_section does not declare it"
        raise TpuxError(message, hint=f"a bug in the plugin {allocator}: report it to its authors") from error

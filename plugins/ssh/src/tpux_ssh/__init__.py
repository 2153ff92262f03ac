"""Plugin `ssh`: the SSH transport, and a module that installs keys on the workers."""

from __future__ import annotations

import getpass
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import Finding, Host, Job, JsonValue, Section, Steps, UsageError, Worker, hookimpl
from tpux_ssh import worker_setup
from tpux_ssh.host_keys import host_keys_dir
from tpux_ssh.keyfiles import own_key, public_line
from tpux_ssh.section import SshSection, section_of
from tpux_ssh.target import find_login, login_user

if TYPE_CHECKING:
    from tpux import events

GCLOUD_VARIABLES = (
    "CLOUDSDK_CONFIG",
    "CLOUDSDK_ACTIVE_CONFIG_NAME",
    "CLOUDSDK_CORE_ACCOUNT",
    "CLOUDSDK_PYTHON",
)
"""Variables that decide which account gcloud uses, and that a supervisor does not have."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `ssh`."""
    return SshSection


@hookimpl
def resolve(job: Job) -> dict[str, JsonValue]:
    """Return the login user, the directory of the user's own keys and, for `ssh.iap`, gcloud with its configuration.

    Raises:
        UsageError: there is no user name to log in with, or `ssh.iap` is set and gcloud is not installed.
    """
    try:
        user = job.job.remote_user or getpass.getuser()
    except (KeyError, OSError) as error:
        raise UsageError("this account has no user name to log in with", hint="set job.remote_user") from error
    found: dict[str, JsonValue] = {"user": user, "keys": str(Path.home() / ".ssh")}
    found |= {"login_user": find_login(job) or user, "shown": ["login_user"]}
    if section_of(job).iap:
        if (gcloud := shutil.which("gcloud")) is None:
            hint = "install the Google Cloud CLI (gcloud), and run: gcloud auth login"
            raise UsageError("ssh.iap needs gcloud, which is not on $PATH", where="ssh.iap", hint=hint)
        environment: dict[str, JsonValue] = {name: os.environ[name] for name in GCLOUD_VARIABLES if name in os.environ}
        found |= {"gcloud": gcloud, "gcloud_environment": environment}
    return found


@hookimpl
def connect(worker: Worker, job: Job) -> Host:
    """Log in to a worker."""
    from tpux_ssh.host import SshHost  # imports fabric, which a job on other machines does not need

    host = SshHost(worker, job)
    host.open()
    return host


@hookimpl
def shell_on(worker: Worker, job: Job) -> list[str] | None:
    """Return the command that logs in to a worker from another one, where the module lets it."""
    from tpux_ssh.inter_worker import may_log_in

    if "ssh" not in job.modules or not may_log_in(job, section_of(job)):
        return None
    options = [f"-o{option}" for option in ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=10")]
    return ["ssh", "-T", *options, "--", worker.internal_ip or worker.address, "sh -s"]


@hookimpl
def public_keys(job: Job) -> list[str]:
    """Return tpux's public key and the user's, in the format of Google's `ssh-keys` metadata (`user:key comment`)."""
    section = section_of(job)
    user = login_user(job)
    configured = [key for key in (section.private_key, section.tpu_private_key) if key is not None]
    return [f"{user}:{public_line(own_key())} tpux", *(f"{user}:{public_line(key)} {user}" for key in configured)]


@hookimpl
def on_event(job: Job, event: events.Event) -> None:
    """Delete the host keys of released machines: the next machines may get the same addresses."""
    from tpux import events  # which commands such as `tpux exec` do not need

    if isinstance(event, events.Released) and job.tpu.allocation_mode != "hosts":
        shutil.rmtree(host_keys_dir(job), ignore_errors=True)


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Check that tpux's own key can be created and that the configured keys are usable."""
    try:
        own_key()
    except OSError as error:
        return [Finding("error", f"cannot create tpux's own key: {error}", hint="check that $TPUX_HOME is writable")]
    return worker_setup.identity_findings(section_of(job))


@hookimpl
def check(job: Job, config: Section | None) -> Steps:
    """Check that the worker has the keys and the config entries."""
    return worker_setup.check(job, _ssh_section(config))


@hookimpl
def setup(job: Job, config: Section | None) -> Steps:
    """Install the keys and the config entries on the worker."""
    return worker_setup.setup(job, _ssh_section(config))


@hookimpl
def clean_up(job: Job) -> Steps:
    """Remove the keys and the config entries from machines that tpux has not created."""
    return worker_setup.clean_up(job)


def _ssh_section(config: Section | None) -> SshSection:
    return config if isinstance(config, SshSection) else SshSection()

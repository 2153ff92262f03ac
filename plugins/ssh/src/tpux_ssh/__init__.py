"""The plugin `ssh`: workers that are reached over ssh, and the module that puts keys on them."""

from __future__ import annotations

from collections.abc import Mapping

from tpux import Host, Job, JsonValue, Section, Worker, hookimpl
from tpux_ssh.host import SshHost
from tpux_ssh.section import SshSection


@hookimpl
def config_section() -> type[Section]:
    """The section `ssh`."""
    return SshSection


@hookimpl
def connect(worker: Worker, job: Job) -> Host:
    """Log in to a worker."""
    host = SshHost(worker, job)
    host.open()
    return host


@hookimpl
def public_keys(job: Job) -> list[str]:
    """The key of tpux and the user's, as lines of Google's `ssh-keys` metadata."""
    from tpux_ssh.keyfiles import own_key, public_line
    from tpux_ssh.target import login_user

    section = job.section("ssh", SshSection) or SshSection()
    user = login_user(job)
    named = [key for key in (section.private_key, section.tpu_private_key) if key is not None]
    return [f"{user}:{public_line(own_key())} tpux", *(f"{user}:{public_line(key)} {user}" for key in named)]


@hookimpl
def on_event(job: Job, event: Mapping[str, JsonValue]) -> None:
    """Forget the host keys of machines that were given back: the next ones may have their addresses."""
    if event["type"] == "released" and job.tpu.allocation_mode != "hosts":
        import shutil

        from tpux_ssh.pins import directory

        shutil.rmtree(directory(job), ignore_errors=True)

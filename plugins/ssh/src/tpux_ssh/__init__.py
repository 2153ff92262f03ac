"""The plugin `ssh`: workers that are reached over ssh, and the module that puts keys on them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from tpux import Finding, Host, Job, JsonValue, Section, Steps, Worker, hookimpl
from tpux_ssh import worker_setup
from tpux_ssh.host import SshHost
from tpux_ssh.host_keys import host_keys_dir
from tpux_ssh.keyfiles import own_key, public_line
from tpux_ssh.section import SshSection, section_of
from tpux_ssh.target import login_user


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
    section = section_of(job)
    user = login_user(job)
    named = [key for key in (section.private_key, section.tpu_private_key) if key is not None]
    return [f"{user}:{public_line(own_key())} tpux", *(f"{user}:{public_line(key)} {user}" for key in named)]


@hookimpl
def on_event(job: Job, event: Mapping[str, JsonValue]) -> None:
    """Forget the host keys of machines that were given back: the next ones may have their addresses."""
    if event["type"] == "released" and job.tpu.allocation_mode != "hosts":
        shutil.rmtree(host_keys_dir(job), ignore_errors=True)


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Whether tpux's own key can be made, and the keys that the config names be used."""
    try:
        own_key()
    except OSError as error:
        return [Finding("error", f"tpux's own key cannot be made: {error}", hint="see that $TPUX_HOME is writable")]
    return worker_setup.pair_findings(section_of(job))


@hookimpl
def check(job: Job, config: Section | None) -> Steps:
    """Whether the worker has the keys and the config entries."""
    return worker_setup.check(job, _own(config))


@hookimpl
def setup(job: Job, config: Section | None) -> Steps:
    """Put them there."""
    return worker_setup.setup(job, _own(config))


def _own(config: Section | None) -> SshSection:
    return config if isinstance(config, SshSection) else SshSection()

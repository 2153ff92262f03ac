"""The plugin `ssh`: workers that are reached over ssh, and the module that puts keys on them."""

from __future__ import annotations

from collections.abc import Mapping

from tpux import Finding, Host, Job, JsonValue, Section, Steps, Worker, hookimpl
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


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Whether tpux's own key can be made, and the keys that the config names be used."""
    from tpux_ssh.keyfiles import own_key
    from tpux_ssh.module import look_at_pairs

    try:
        own_key()
    except OSError as error:
        return [Finding("error", f"tpux's own key cannot be made: {error}", hint="see that $TPUX_HOME is writable")]
    return look_at_pairs(job.section("ssh", SshSection) or SshSection())


@hookimpl
def check(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Whether the worker has the keys and the config entries."""
    from tpux_ssh import module

    return module.check(job, _section(config), worker)


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Put them there."""
    from tpux_ssh import module

    return module.setup(job, _section(config), worker)


def _section(config: Section | None) -> SshSection:
    return config if isinstance(config, SshSection) else SshSection()

"""Environment `docker`: runs the command in a container on each worker."""

from __future__ import annotations

from dataclasses import replace

from tpux import Command, Finding, Job, Section, Steps, TpuxError, Worker, hookimpl, sh
from tpux_docker import scripts
from tpux_docker.container import Container
from tpux_docker.section import DockerSection, is_ignored

SILENTLY_LEFT_OUT = {"--rm", "-i", "--interactive"}
"""Options that are set in any case."""
STOP_MARGIN = 120.0
"""Seconds that docker may take to answer and to stop a container, beyond the grace period of its program."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `docker`."""
    return DockerSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Say which options are left out, and which directory the command starts in if the config names two."""
    section, found = _section(job.section("docker", DockerSection)), []
    if left_out := [flag for flag in section.flags if is_ignored(flag) and flag not in SILENTLY_LEFT_OUT]:
        message = f"{' '.join(left_out)} is left out: there is no terminal, and tpux waits for the program"
        found.append(Finding("note", message, "docker.flags"))
    if section.workdir is not None and "code" in job.modules:
        message = "the command starts in the directory of the code: docker.workdir has no effect"
        found.append(Finding("note", message, "docker.workdir", "remove it, or write cd in the command"))
    return found


@hookimpl
def check(config: Section | None) -> Steps:
    """Check that docker can be used and has the image."""
    yield sh(scripts.CHECK, image=_section(config).image)


@hookimpl
def setup(config: Section | None) -> Steps:
    """Install and start docker if it cannot be used, and pull the image if it is not there."""
    yield scripts.install()
    yield sh(scripts.PULL, image=_section(config).image)


@hookimpl
def run(job: Job, command: Command, config: Section | None, worker: Worker) -> Command:
    """Wrap the command, so that it runs in a container that lives as long as the run."""
    container = Container(job, _section(config), worker)
    variables = container.variables(command)
    # Beside those of the client: HOME, PATH or LD_LIBRARY_PATH of the container must not be docker's own.
    sent = {f"{scripts.SENT}{index}": f"{name}={value}" for index, (name, value) in enumerate(variables.items())}
    program = ("bash", "-c", scripts.INIT, "tpux-docker", *command.argv)
    made = (str(len(command.directories)), *command.directories, *container.arguments(command, program))
    grace = job.command.grace_period
    stop = sh(scripts.STOP, may_fail=True, timeout=grace + STOP_MARGIN, name=container.name, grace=max(1, round(grace)))
    return replace(
        command,
        argv=("bash", "-c", scripts.RUN, "tpux-docker", container.name, container.label, str(len(sent)), *made),
        env=sent,
        stop=(*command.stop, stop),
        cwd=".",
    )


def _section(config: Section | None) -> DockerSection:
    if not isinstance(config, DockerSection):
        raise TpuxError("the job has no section docker", hint="for example docker: {image: NAME}")
    return config

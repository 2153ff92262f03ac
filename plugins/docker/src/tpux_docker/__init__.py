"""Environment `docker`: runs the command in a container on each worker."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tpux import Attempt, Command, Failure, Finding, Job, Section, Steps, TpuxError, Worker, hookimpl, sh
from tpux_docker import scripts
from tpux_docker.container import Container
from tpux_docker.section import DockerSection, is_ignored

SILENTLY_LEFT_OUT = {"--rm", "-i", "--interactive"}
"""Options that are set in any case."""
RUN_HOME = "TPUX_RUN_HOME"
TRY_LIMIT = 300
"""Seconds that the image's entry point may take before it starts the command, when it is tried."""
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
    """Check that docker can be used and has the image, and that a command was started in it."""
    section = _section(config)
    yield sh(scripts.CHECK, image=section.image, tried=_tried(section))


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker) -> Steps:
    """Install and start docker if it cannot be used, pull the image if it is not there, and try it."""
    section = _section(config)
    yield scripts.install()
    yield sh(scripts.PULL, image=section.image)
    home = (yield sh("# find the home directory\npwd -P", example="/root")).text
    container = Container(job, section, worker, suffix="-try")
    script = f"{home}/.tpux/docker/{job.key}-w{worker.index}/script"
    command = Command(("bash", script), script, {RUN_HOME: home})
    arguments = container.run_arguments(command, variables=0)
    yield sh(
        scripts.TRY,
        image=section.image,
        name=container.name,
        script=script,
        tried=_tried(section),
        limit=TRY_LIMIT,
        run=scripts.RUN,
        arguments=arguments,
    )


@hookimpl
def run(job: Job, command: Command, config: Section | None, worker: Worker) -> Command:
    """Wrap the command, so that it runs in a container that lives as long as the run."""
    container = Container(job, _section(config), worker)
    variables = container.variables(command)
    if command.beside:
        sent = scripts.sent(variables)
        argv = ("bash", "-c", scripts.ENTER, "tpux-docker", *container.enter_arguments(command, len(sent)))
        return replace(command, argv=argv, env={**sent, RUN_HOME: command.env.get(RUN_HOME, "")}, cwd=".")
    # Beside those of the client: HOME, PATH or LD_LIBRARY_PATH of the container must not be docker's own.
    sent = scripts.sent(variables)
    grace = job.command.grace_period
    stop = sh(scripts.STOP, may_fail=True, timeout=grace + STOP_MARGIN, name=container.name, grace=max(1, round(grace)))
    return replace(
        command,
        argv=("bash", "-c", scripts.RUN, "tpux-docker", *container.run_arguments(command, len(sent))),
        env=sent,
        stop=(*command.stop, stop),
        cwd=".",
    )


@hookimpl
def classify_failure(attempt: Attempt) -> list[Failure]:
    """Return the workers on which the image's entry point never started the command, whatever its exit code."""
    lines = {ending.worker: ending.tail().rstrip().rpartition("\n")[2] for ending in attempt.endings if ending.failed}
    return [
        Failure("setup", worker, line, scripts.REPLACE_ENTRY_POINT)
        for worker, line in lines.items()
        if line.startswith(scripts.NOT_STARTED)
    ]


def _tried(section: DockerSection) -> str:
    """Return the file, relative to the home directory, with the id of the image in which a command was started.

    Its name depends on what decides whether one can be: the options.
    """
    facts = "\0".join([section.image, *section.flags, *section.mount_dirs, section.workdir or ""])
    return f".tpux/docker/{hashlib.sha256(facts.encode(errors='surrogateescape')).hexdigest()[:16]}"


def _section(config: Section | None) -> DockerSection:
    if not isinstance(config, DockerSection):
        raise TpuxError("the job has no section docker", hint="for example docker: {image: NAME}")
    return config

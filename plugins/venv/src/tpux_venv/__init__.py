"""Environment `venv`: runs the command in a Python virtual environment on each worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tpux import Command, Finding, Job, Peer, Section, Steps, Worker, hookimpl
from tpux_venv.build import build
from tpux_venv.requirements import uncopied_files
from tpux_venv.scripts import ACTIVATE, CHECK, CLEAN_UP, script_step
from tpux_venv.section import VenvSection
from tpux_worker_tools import peer_copy


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `venv`."""
    return VenvSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report local files that the requirements file refers to, which are not copied, and workers that cannot copy."""
    section = job.section("venv", VenvSection)
    if section is None or section.requirements_file is None:
        return []
    hint = "copy its lines into the requirements file, or use a package, a URL, or a path on the workers"
    return [
        Finding("error", f"{name!r} is not copied to the workers", f"{section.requirements_file}:{line}", hint)
        for line, name in uncopied_files(section.requirements_file)
    ] + peer_copy.preflight(job, "venv")


@hookimpl
def check(job: Job, config: Section | None) -> Steps:
    """Check that the environment is complete and that its Python starts and has the configured version."""
    yield script_step(_venv_section(config), CHECK, owner=job.key, job=_shown(job))


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker, peers: Sequence[Peer]) -> Steps:
    """Create or update the environment."""
    directory = peer_copy.bucket_directory(job, "venv")
    return build(_venv_section(config), worker.index, peers, directory, key=job.key, job=_shown(job))


@hookimpl
def clean_up(job: Job, config: Section | None) -> Steps:
    """Remove the index's URL and the requirements of a set-up that was cut off, and let other jobs go on."""
    yield script_step(_venv_section(config), CLEAN_UP, owner=job.key)


@hookimpl
def run(command: Command, config: Section | None) -> Command:
    """Wrap the command, so that it runs in the environment, or not at all if the environment cannot be activated."""
    given = (_venv_section(config).directory, command.way_out, *command.argv)
    return replace(command, argv=("bash", "-c", ACTIVATE, "tpux-venv", *given))


def _shown(job: Job) -> str:
    return f"job {int(job.id)} of {job.user}"


def _venv_section(config: Section | None) -> VenvSection:
    return config if isinstance(config, VenvSection) else VenvSection()

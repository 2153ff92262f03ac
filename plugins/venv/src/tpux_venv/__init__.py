"""Environment `venv`: runs the command in a Python virtual environment on each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpux import Command, Finding, Job, Peer, Section, Steps, Worker, hookimpl
from tpux_venv.build import build
from tpux_venv.scripts import ACTIVATE, CHECK, CLEAN_UP, script_step
from tpux_venv.section import VenvSection
from tpux_worker_tools import peer_copy, requirements

if TYPE_CHECKING:
    from tpux import JsonValue


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `venv`."""
    return VenvSection


@hookimpl
def resolve(job: Job) -> Mapping[str, JsonValue] | None:
    """Return where the requirements file is on this machine, by which it is found in the code."""
    file = _venv_section(job.section("venv", VenvSection)).requirements_file
    path = requirements.source_path(job, "venv", "requirements", file)
    return {"requirements": path, "shown": []} if path else None


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report local files that the requirements refer to and that are not copied, and workers that cannot copy."""
    section = job.section("venv", VenvSection)
    if section is None or section.requirements_file is None:
        return []
    return [*section.with_code(job).brought.findings, *peer_copy.preflight(job, "venv")]


@hookimpl
def check(job: Job, config: Section | None) -> Steps:
    """Check that the environment is complete and that its Python starts and has the configured version."""
    yield script_step(_venv_section(config).with_code(job), CHECK, owner=job.key, job=_shown(job))


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker, peers: Sequence[Peer]) -> Steps:
    """Create or update the environment."""
    directory = peer_copy.bucket_directory(job, "venv")
    return build(_venv_section(config).with_code(job), worker.index, peers, directory, key=job.key, job=_shown(job))


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

"""Environment `conda`: runs the command in a conda environment on each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tpux import Command, Finding, Job, Peer, Section, Steps, Worker, hookimpl
from tpux_conda import scripts
from tpux_conda.build import build
from tpux_conda.scripts import script_step
from tpux_conda.section import CondaSection
from tpux_worker_tools import peer_copy, requirements

if TYPE_CHECKING:
    from tpux import JsonValue


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `conda`."""
    return CondaSection


@hookimpl
def resolve(job: Job) -> Mapping[str, JsonValue] | None:
    """Return where the files are on this machine, by which they are found in the code."""
    section = _conda_section(job.section("conda", CondaSection))
    files = {"config_file": section.config_file, "requirements_file": section.requirements_file}
    paths = {key: requirements.source_path(job, "conda", key, file) for key, file in files.items() if file is not None}
    return {**paths, "shown": []} if paths else None


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report local files that the files refer to and that are not copied, and workers that cannot copy."""
    section = _conda_section(job.section("conda", CondaSection))
    from_file, others = section.with_code(job).brought
    return [*from_file.findings, *others.findings, *peer_copy.preflight(job, "conda")]


@hookimpl
def check(job: Job, config: Section | None) -> Steps:
    """Check that the environment is complete, and has the configured Python."""
    yield script_step(_conda_section(config).with_code(job), scripts.CHECK, owner=job.key, job=_shown(job))


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker, peers: Sequence[Peer]) -> Steps:
    """Copy the environment from the bucket or from another worker, or create or update it here."""
    directory = peer_copy.bucket_directory(job, "conda")
    return build(_conda_section(config).with_code(job), worker.index, peers, directory, key=job.key, job=_shown(job))


@hookimpl
def clean_up(job: Job, config: Section | None) -> Steps:
    """Remove the requirements, which may have a password, of a set-up that was cut off, and let other jobs go on."""
    yield script_step(_conda_section(config), scripts.CLEAN_UP, owner=job.key)


@hookimpl
def run(command: Command, config: Section | None) -> Command:
    """Wrap the command, so that it runs in the environment, or not at all if the environment cannot be activated."""
    given = (_conda_section(config).name, command.way_out, *command.argv)
    return replace(command, argv=("bash", "-c", scripts.ACTIVATE, "tpux-conda", *given))


def _shown(job: Job) -> str:
    return f"job {int(job.id)} of {job.user}"


def _conda_section(config: Section | None) -> CondaSection:
    return config if isinstance(config, CondaSection) else CondaSection.model_validate({})

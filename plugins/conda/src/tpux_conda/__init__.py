"""Environment `conda`: runs the command in a conda environment on each worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tpux import Command, Finding, Job, Peer, Section, Steps, Worker, hookimpl
from tpux_conda import scripts
from tpux_conda.build import build
from tpux_conda.scripts import script_step
from tpux_conda.section import CondaSection
from tpux_worker_tools import peer_copy

_REFERENCE = re.compile(r"\s*(?:-\s+)?['\"]?(?:-[rce]|--requirement|--constraint|--editable)[\s=]\s*([^\s'\"#]+)")


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `conda`."""
    return CondaSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report local files that the files refer to, which are not copied, and workers that cannot copy."""
    section = _conda_section(job.section("conda", CondaSection))
    hint = "copy its lines into this file, or use a package, a URL, or a path on the workers"
    return [
        Finding("error", f"{name!r} is not copied to the workers", f"{file}:{line}", hint)
        for file in (section.config_file, section.requirements_file)
        if file is not None
        for line, name in _uncopied_files(file)
    ] + peer_copy.preflight(job, "conda")


@hookimpl
def check(job: Job, config: Section | None) -> Steps:
    """Check that the environment is complete, and has the configured Python."""
    yield script_step(_conda_section(config), scripts.CHECK, owner=job.key, job=_shown(job))


@hookimpl
def setup(job: Job, config: Section | None, worker: Worker, peers: Sequence[Peer]) -> Steps:
    """Copy the environment from the bucket or from another worker, or create or update it here."""
    directory = peer_copy.bucket_directory(job, "conda")
    return build(_conda_section(config), worker.index, peers, directory, key=job.key, job=_shown(job))


@hookimpl
def clean_up(job: Job, config: Section | None) -> Steps:
    """Remove the requirements, which may have a password, of a set-up that was cut off, and let other jobs go on."""
    yield script_step(_conda_section(config), scripts.CLEAN_UP, owner=job.key)


@hookimpl
def run(command: Command, config: Section | None) -> Command:
    """Wrap the command, so that it runs in the environment, or not at all if the environment cannot be activated."""
    given = (_conda_section(config).name, command.way_out, *command.argv)
    return replace(command, argv=("bash", "-c", scripts.ACTIVATE, "tpux-conda", *given))


def _uncopied_files(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, name) for each reference by relative path, as pip's part of an environment.yml has them."""
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if (found := _REFERENCE.match(line)) and not found[1].startswith(("/", "~", "$")) and "://" not in found[1]:
            yield number, found[1]


def _shown(job: Job) -> str:
    return f"job {int(job.id)} of {job.user}"


def _conda_section(config: Section | None) -> CondaSection:
    return config if isinstance(config, CondaSection) else CondaSection.model_validate({})

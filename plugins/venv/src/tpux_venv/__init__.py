"""The environment `venv`: a Python virtual environment on each worker, in which the command runs."""

from __future__ import annotations

from dataclasses import replace

from tpux import Command, Finding, Job, Section, Steps, hookimpl
from tpux_venv.build import build
from tpux_venv.requirements import uncopied_files
from tpux_venv.scripts import ACTIVATE, CHECK, script_step
from tpux_venv.section import VenvSection


@hookimpl
def config_section() -> type[Section]:
    """The section `venv`."""
    return VenvSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Whether the requirements file needs files that would stay behind: it alone is copied to the workers."""
    section = job.section("venv", VenvSection)
    if section is None or section.requirements_file is None:
        return []
    hint = "put its lines into the file itself, or name a package, an address, or a path on the workers"
    return [
        Finding("error", f"{what!r} is not copied to the workers", f"{section.requirements_file}:{line}", hint)
        for line, what in uncopied_files(section.requirements_file)
    ]


@hookimpl
def check(config: Section | None) -> Steps:
    """Whether the environment was built to its end, and its Python starts and is the one that is wanted."""
    yield script_step(_own(config), CHECK)


@hookimpl
def setup(config: Section | None) -> Steps:
    """Build the environment, or bring it up to date."""
    return build(_own(config))


@hookimpl
def run(command: Command, config: Section | None) -> Command:
    """Run the whole command in the environment, or nothing of it."""
    return replace(command, argv=("bash", "-c", ACTIVATE, "tpux-venv", _own(config).place, *command.argv))


def _own(config: Section | None) -> VenvSection:
    return config if isinstance(config, VenvSection) else VenvSection()

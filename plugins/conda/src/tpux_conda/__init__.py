"""Environment `conda`: runs the command in a conda environment on each worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tpux import Command, Finding, Job, Section, Steps, hookimpl, put
from tpux_conda import scripts
from tpux_conda.scripts import script_step
from tpux_conda.section import CondaSection

_REFERENCE = re.compile(r"\s*(?:-\s+)?['\"]?(?:-[rce]|--requirement|--constraint|--editable)[\s=]\s*([^\s'\"#]+)")


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `conda`."""
    return CondaSection


@hookimpl
def preflight(job: Job) -> list[Finding]:
    """Report the local files that the files refer to: only the files themselves are copied to the workers."""
    section = _conda_section(job.section("conda", CondaSection))
    hint = "copy its lines into this file, or use a package, a URL, or a path on the workers"
    return [
        Finding("error", f"{name!r} is not copied to the workers", f"{file}:{line}", hint)
        for file in (section.config_file, section.requirements_file)
        if file is not None
        for line, name in _uncopied_files(file)
    ]


@hookimpl
def check(config: Section | None) -> Steps:
    """Check that the environment is complete, and has the configured Python."""
    yield script_step(_conda_section(config), scripts.CHECK)


@hookimpl
def setup(config: Section | None) -> Steps:
    """Install conda if there is none, and create or update the environment."""
    section = _conda_section(config)
    yield script_step(section, scripts.INSTALL)
    yield script_step(section, scripts.PREPARE)
    if section.config_file is not None:
        yield put(section.config_file, scripts.environment_file(section))
        yield script_step(section, scripts.CREATE_FROM_FILE)
    else:
        yield script_step(section, scripts.CREATE)
    if section.requirements_file is not None or section.requirements:
        yield put(_requirements(section), scripts.requirements_file(section))
        yield script_step(section, scripts.INSTALL_REQUIREMENTS)
    yield script_step(section, scripts.MARK_READY)


@hookimpl
def run(command: Command, config: Section | None) -> Command:
    """Wrap the command, so that it runs in the environment, or not at all if the environment cannot be activated."""
    name = _conda_section(config).name
    return replace(command, argv=("bash", "-c", scripts.ACTIVATE, "tpux-conda", name, *command.argv))


def _requirements(section: CondaSection) -> bytes:
    given = section.requirements_file.read_bytes() if section.requirements_file is not None else b""
    return b"\n".join([given, *(line.encode() for line in section.requirements), b""])


def _uncopied_files(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, name) for each reference by relative path, as pip's part of an environment.yml has them."""
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if (found := _REFERENCE.match(line)) and not found[1].startswith(("/", "~", "$")) and "://" not in found[1]:
            yield number, found[1]


def _conda_section(config: Section | None) -> CondaSection:
    return config if isinstance(config, CondaSection) else CondaSection.model_validate({})

"""Which plugins a job selects, and what their sections declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from tpux.model.job import Job
from tpux.plugin.catalog import RULES
from tpux.plugin.guard import call_section

if TYPE_CHECKING:
    from tpux.model.sections import Section, TpuSection


def selected_plugins(job: Job) -> tuple[str, ...]:
    """Return the plugins that the job's config selects, each once. A section alone selects nothing.

    They are called for `resolve`, `preflight`, `public_keys` and `prepare_command`, and their wrappers apply to the
    job's hooks.

    Returns:
        The allocator, the transport that it declares and those that this one connects through, the modules, the
        environment, the rule, and the detectors of `command.finished_by`.

    Raises:
        TpuxError: the section of a transport failed to say what it connects through.
    """
    allocator = job.tpu.allocation_mode
    rule = () if job.job.rule is None or job.job.rule in RULES else (job.job.rule,)
    environment = () if job.environment is None else (job.environment,)
    trusted = job.command.finished_by
    return tuple(dict.fromkeys([allocator, *transports(job.sections), *job.modules, *environment, *rule, *trusted]))


def durable_paths(job: Job) -> list[str]:
    """Return the directories on the workers that outlive the machines, as the selected plugins' sections declare them.

    Raises:
        TpuxError: a section failed to say it.
    """
    from tpux.model.sections import Section

    sections = {"tpu": job.tpu, **{name: job.sections[name] for name in selected_plugins(job) if name in job.sections}}
    return [path for name, section in sections.items() for path in call_section(name, section, Section.durable_paths)]


def transports(sections: Mapping[str, Section]) -> list[str]:
    """Return the transport that a job's allocator declares, and those that it connects through, one by the other.

    Args:
        sections: the job's sections; a transport without one connects through no other.

    Raises:
        TpuxError: a section failed to say what it connects through.
    """
    from tpux.model.sections import Section

    tpu = cast("TpuSection", sections["tpu"])
    found: list[str] = []
    name: str | None = tpu.transport or tpu.allocation_mode
    while name is not None and name not in found:
        found.append(name)
        section = sections.get(name)
        name = None if section is None else call_section(name, section, Section.connects_through)
    return found

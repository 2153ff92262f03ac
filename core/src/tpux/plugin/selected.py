"""Which plugins a job selects, and what their sections declare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

from tpux.model.job import Job
from tpux.plugin.catalog import RULES
from tpux.plugin.guard import call_section

if TYPE_CHECKING:
    from tpux.model.sections import CommandSection, JobSection, Section, TpuSection


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
    environment = () if job.environment is None else (job.environment,)
    allocator, *others = named_plugins(job.sections, [*job.modules, *environment])
    return tuple(dict.fromkeys([allocator, *transports(job.sections), *others]))


def named_plugins(sections: Mapping[str, Section], modules: Iterable[str]) -> list[str]:
    """Return the plugins that the keys of a config select, the allocator first; its transports are not among them.

    Args:
        sections: core's sections; the rule and the detectors of one that is missing are left out.
        modules: the modules that the config selects, the environment included.
    """
    job = cast("JobSection | None", sections.get("job"))
    command = cast("CommandSection | None", sections.get("command"))
    rule = [job.rule] if job and job.rule is not None and job.rule not in RULES else []
    return [_allocator(sections), *modules, *rule, *(command.finished_by if command else ())]


def plugins_with_section(
    sections: Mapping[str, Section], selected: Iterable[str], written: Iterable[str]
) -> Iterator[str]:
    """Yield the plugins whose section a job has, if they define one: the same when it is created and when it is loaded.

    These are the sections that the config has, and with their defaults those of all plugins that it selects.

    Args:
        sections: the job's sections; to be added here as they are yielded, since that of a transport says what it
            connects through.
        selected: the plugins that `named_plugins` returns.
        written: the sections of plugins that the config has.

    Raises:
        TpuxError: the section of a transport failed to say what it connects through.
    """
    names = dict.fromkeys([*written, *selected])
    yield from names
    while "tpu" in sections and _allocator(sections) in names and (name := transports(sections)[-1]) not in names:
        names[name] = None
        yield name


def _allocator(sections: Mapping[str, Section]) -> str:
    return cast("TpuSection", sections["tpu"]).allocation_mode


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

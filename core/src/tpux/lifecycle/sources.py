"""What is stored with a job (its config, the files that this names, code) and has changed since at its source."""

from __future__ import annotations

import filecmp
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux.errors import TpuxError
from tpux.lifecycle.open import open_job, stored_config
from tpux.model.sections import Section
from tpux.plugin.guard import call_section
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import selected_plugins
from tpux.store import files

if TYPE_CHECKING:
    from tpux.model.job import Job
    from tpux.model.json import JsonValue
    from tpux.store import Store
    from tpux.store.record import Record

SHOWN = 5
"""How many files of one plugin are named."""


@dataclass(frozen=True)
class ChangedSources:
    """What differs by now from what is stored with a job.

    Attributes:
        names: each for people; empty if nothing differs.
        arguments: what takes it, after the command and the job's number, quoted for the shell.
    """

    names: tuple[str, ...] = ()
    arguments: str = ""

    def describe(self, command: str) -> str:
        """Return this in one line, for people.

        Args:
            command: what starts the job again, such as `tpux resume 12`.
        """
        verb = "has" if len(self.names) == 1 else "have"
        were = "it was" if len(self.names) == 1 else "they were"
        return f"{', '.join(self.names)} {verb} changed since {were} stored with the job: {command} {self.arguments}"


def find_changed(store: Store, record: Record) -> ChangedSources:
    """Return what has changed at its source since it was stored with a job; nothing if the job cannot be opened.

    Args:
        store: the store that has the job.
        record: the job.
    """
    try:
        answers = (files.load(record.config_directory / "resolved.json") or {}).get("resolved")
        job = None
        if answers or record.updates():  # else no plugin has stored anything
            opened = open_job(store, record, Plugins(), "look", os.environ).job
            job = replace(opened, resolved={**opened.resolved, **record.updates()})
        return compare_sources(job, stored_config(record), record.config_directory)
    except (TpuxError, OSError):  # whatever command comes next says it
        return ChangedSources()


def compare_sources(job: Job | None, data: Mapping[str, JsonValue], directory: Path) -> ChangedSources:
    """Return what has changed at its source since it was stored.

    Args:
        job: the job with the stored config; None if no plugin has stored anything.
        data: the stored config, with the copies of its files where they are now.
        directory: the directory of the stored config.
    """
    config = Path(str(data["path"]))
    is_edited = config.is_file() and config.read_bytes() != (directory / "config.yaml").read_bytes()
    others = [*_changed_files(data), *(_changed_answers(job) if job else ())]
    given = ["--config", str(config), *cast("list[str]", data["overrides"])] if is_edited else []
    arguments = [*given, *(["--sync"] if others or is_edited else [])]
    return ChangedSources((*([str(config)] if is_edited else []), *others), shlex.join(arguments))


def sources_of(data: Mapping[str, JsonValue]) -> dict[Path, Path]:
    """Return where each file of a stored config was read.

    Args:
        data: the stored config.
    """
    sources = cast("dict[str, str]", data.get("sources", {}))
    return {Path(file): Path(sources.get(file, file)) for file in cast("dict[str, str]", data["files"])}


def _changed_files(data: Mapping[str, JsonValue]) -> Iterator[str]:
    copies = cast("dict[str, str]", data["files"])
    for file, source in sources_of(data).items():
        # One that is gone leaves nothing to take.
        if source.is_file() and not filecmp.cmp(copies[str(file)], source, shallow=False):
            yield str(source)


def _changed_answers(job: Job) -> Iterator[str]:
    for name in selected_plugins(job):
        section, answer = job.sections.get(name), job.resolved.get(name)
        if section is None or answer is None:
            continue
        try:
            found = call_section(name, section, Section.changed_sources, answer)
        except TpuxError as error:
            found = [f"cannot be compared: {error.message}"]
        if found:
            more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
            yield f"{name} ({', '.join(found[:SHOWN])}{more})"

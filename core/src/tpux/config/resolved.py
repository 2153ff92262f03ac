"""A loaded config, its stored form (`resolved.json`), and reading that form back."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from pydantic import ValidationError

from tpux import env
from tpux.config.arguments import as_written
from tpux.config.document import Document, KeyPath, Node, Placeholder, Span, node_at, placeholders, to_json
from tpux.config.models import OtherTpuSection, drop_unset, model_of, tpu_model
from tpux.config.secrets import MASK, escape, placeholder, restore, shell_variable
from tpux.errors import InvalidSectionError, Problem, TpuxError
from tpux.model.sections import CORE_SECTIONS, Section, TpuSection
from tpux.model.values import CONTROL_CHARACTER
from tpux.plugin import calls
from tpux.plugin.guard import UnusablePluginError, call_section
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import named_plugins, plugins_with_section

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

S = TypeVar("S", bound=Section)
T = TypeVar("T")
log = logging.getLogger(__name__)
_LONGEST_NAME = 100  # characters, in the name of a directory, which may have 255 bytes
_DESCRIPTORS = {"/dev/fd", "/proc/self/fd"}


@dataclass
class Loaded:
    """A config: each step of loading fills in its part, and `load` returns it if it is valid.

    Attributes:
        path: its file.
        text: the content of the file, comments included.
        overrides: the arguments that override it, and those of the program.
        document: its content with positions, all references resolved.
        plugins: the plugins that define its sections.
        home: what `~` in a path on this machine stands for.
        problems: the errors found so far.
        warnings: what may be a mistake.
        taken: the arguments that are the program's.
        sections: the validated sections: core's seven, and those of `plugins_with_section`. `${job.id}` is 000000 in
            them.
        invalid: the names of the sections with errors.
        named_at: the plugins that the config selects, and where it names each.
        modules: what prepares the workers, in order, the environment included.
        environment: the module that wraps the command.
        allocator: what gets the machines.
        workers: the number of workers, None if it is not known before provisioning.
        secrets: the value of each `${env:NAME}`, by NAME.
        files: the local files that the config names, to be copied to the job, each with where it is read: at its
            place, or the job's copy.
        plugin_files: those of them that are plugins.
        sources: where the files of a stored config were read first.
        settings: path and content of each file of settings.
    """

    path: Path
    text: str
    overrides: tuple[str, ...]
    document: Document = field(repr=False)
    plugins: Plugins = field(repr=False)
    home: Path
    problems: list[Problem]
    warnings: list[Problem]
    taken: tuple[str, ...] = ()
    sections: dict[str, Section] = field(default_factory=dict, repr=False)  # they contain the secrets
    invalid: set[str] = field(default_factory=set)
    named_at: dict[str, Span] = field(default_factory=dict, repr=False)
    modules: tuple[str, ...] = ()
    environment: str | None = None
    allocator: str = ""
    workers: int | None = None
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    files: dict[Path, Path] = field(default_factory=dict)
    plugin_files: Mapping[Path, Path] = field(default_factory=dict)
    sources: dict[Path, Path] = field(default_factory=dict)
    settings: tuple[tuple[str, str], ...] = ()

    def section(self, name: str, model: type[S]) -> S | None:
        """Return a section of core; None if it is invalid."""
        section = self.sections.get(name)
        return section if isinstance(section, model) else None

    def error(self, at: Span | KeyPath, message: str, hint: str = "") -> None:
        """Add an error.

        Args:
            at: where it is: a span, or the path of a value.
            message: what is wrong.
            hint: what to do about it.
        """
        self.problems.append(Problem(self._location(at), message, hint))

    def warn(self, at: Span | KeyPath, message: str, hint: str = "") -> None:
        """Add a warning; the arguments are those of `error`."""
        self.warnings.append(Problem(self._location(at), message, hint))

    def _location(self, at: Span | KeyPath) -> str:
        return (at if isinstance(at, Span) else self.document.span(*at)).location

    def ask(self, name: str, section: S, method: Callable[[S], T], at: Span | None = None) -> T | None:
        """Return what a method of a section answers; None if the plugin's one fails, which is reported.

        Args:
            name: the section's name.
            section: the section.
            method: the method as core defines it, such as `Section.warnings`.
            at: where the config has the section, or names its plugin.
        """
        try:
            return call_section(section.allocation_mode if isinstance(section, TpuSection) else name, section, method)
        except TpuxError as error:
            self.error(at or (name,), error.message, error.hint)
            return None

    def resolved(
        self,
        *,
        id: str,  # noqa: A002
        user: str,
        token: str = "",
        files: Mapping[Path, Path] | None = None,
    ) -> dict[str, JsonValue]:
        """Return what is stored when a job is created, and read by `from_resolved`.

        Args:
            id: the job's id.
            user: the job's user.
            token: the job's random token.
            files: the copy of each of the config's files.

        Returns:
            JSON: `config` (by section, as given, with the job's variables substituted), `path`, `overrides`,
            `directory`, `home`, `modules`, `environment`, `allocator`, `files` (each file's copy), `sources`
            (where each was read), `settings`, `secrets` (their names; the values are placeholders in `config`).
        """
        variables = job_variables(self.path, id=id, user=user)
        config = {
            name: section_data(name, entry.value, variables, placeholder, escape)
            for name, entry in self.document.entries.items()
            if name in self.sections
        }
        modules: list[JsonValue] = [*self.modules]
        secrets: list[JsonValue] = [*sorted(self.secrets)]
        return {
            "config": {**config, "job": self._with_own_output_dir(config.get("job"), id, token)},
            "path": str(self.path.absolute()),
            "overrides": [*self.overrides],
            "directory": variables["config_dir"],
            "home": str(self.home),
            "modules": modules,
            "environment": self.environment,
            "allocator": self.allocator,
            "files": {str(path): str(copy) for path, copy in (files or {}).items()},
            "sources": {str(path): str(self.sources.get(path, read)) for path, read in self.files.items()},
            "secrets": secrets,
            "settings": [[*each] for each in self.settings],
        }

    def _with_own_output_dir(self, job: JsonValue, id: str, token: str) -> JsonValue:  # noqa: A002
        """Return the section `job` with a name, and with an output directory that no other job has.

        Jobs that name one directory, also those of other users and stores, would overwrite each other's attempts.
        """
        named = with_name(job, self.path)
        directory = named.get("output_dir") if isinstance(named, dict) else None
        if not isinstance(named, dict) or not isinstance(directory, str) or not directory:
            return named
        node = node_at(self.document.section("job"), ("output_dir",))
        if node is not None and any(each.kind == "job" and each.name == "id" for each in placeholders(node)):
            return named
        name = re.sub("[^A-Za-z0-9_.]+", "-", str(named["name"]))[:_LONGEST_NAME]
        own = "-".join(filter(None, [name, id, token]))
        return {**named, "output_dir": f"{directory.rstrip('/')}/{own}"}

    def display(self, id: str = "000000") -> dict[str, JsonValue]:  # noqa: A002
        """Return the config with all `${...}` substituted, and secrets masked."""
        variables = job_variables(self.path, id=id)
        config = {
            name: section_data(name, entry.value, variables, lambda _: MASK)
            for name, entry in self.document.entries.items()
        }
        job = with_name(config.pop("job", None), self.path)
        return {"job": job, **config}


def job_variables(path: Path, *, id: str = "000000", user: str = "") -> dict[str, str]:  # noqa: A002
    """Return the values of `interpolate.JOB_VARIABLES` for a config file."""
    return {"id": id, "user": user or env.user(), "name": _name_of(path), "config_dir": str(path.absolute().parent)}


def with_name(job: JsonValue, path: Path) -> JsonValue:
    """Return the section `job` with a name, by default the config file's."""
    if job is not None and not isinstance(job, dict):
        return job
    return {**(job or {}), "name": (job or {}).get("name") or _name_of(path)}


def _name_of(path: Path) -> str:
    """Return the name of a config file's job, which can be typed and printed: a file's name may have any bytes."""
    if str(path.parent) in _DESCRIPTORS:  # `tpux run <(generate)`
        return "config"
    name = CONTROL_CHARACTER.sub("-", os.fsencode(path.stem).decode(errors="replace"))
    return name.lstrip("-") or "config"


def section_data(
    name: str,
    node: Node,
    variables: Mapping[str, str],
    secret: Callable[[str], str],
    literal: Callable[[str], str] = str,
) -> JsonValue:
    """Return a section as JSON, its placeholders substituted.

    Args:
        name: the section's name. In `command` a secret becomes the shell variable that core exports, so
            that no value is pasted into a script.
        node: its content.
        variables: the job's variables.
        secret: returns the replacement for the secret of that name, in other sections.
        literal: converts all other strings, in other sections.
    """
    if name == "command":
        node = as_written(node)
        return to_json(node, lambda each: variables[each.name] if each.kind == "job" else shell_variable(each.name))

    def substitute(each: Placeholder) -> str:
        return literal(variables[each.name]) if each.kind == "job" else secret(each.name)

    return to_json(node, substitute, literal)


class Resolved(NamedTuple):
    """A stored config: what `tpux.Job` needs of it."""

    sections: dict[str, Section]
    modules: tuple[str, ...]
    environment: str | None
    allocator: str


def from_resolved(
    data: Mapping[str, JsonValue],
    *,
    plugins: Plugins,
    secrets: Mapping[str, str],
    required: Collection[str] | None = None,
    drop_invalid: bool = False,
) -> Resolved:
    """Return the sections of a config that was stored by `Loaded.resolved`.

    Args:
        data: the stored config.
        plugins: the plugins that define its sections.
        secrets: the values of `${env:NAME}`, by NAME. The section `command` does not contain them: it reads
            them as `${TPUX_SECRET_NAME}`.
        required: the sections that must be valid, others are left out; by default those that the job selects. Without
            `tpu`, the plugin of the allocator may be unusable; then that section has core's keys alone.
        drop_invalid: leave out keys that are no longer valid, and log that: enough to end the job. Not `tpu.release`.

    Raises:
        TpuxError: a plugin that the job needs is not installed, a secret is missing, or a section is no
            longer valid for its plugin.
    """
    config = cast("dict[str, JsonValue]", data["config"])
    modules = tuple(cast("list[str]", data["modules"]))
    allocator = cast("str", data["allocator"])
    context = {
        "directory": Path(cast("str", data["directory"])),
        "home": Path(cast("str", data["home"])),
        "check_files": False,
        "copies": {Path(path): Path(copy) for path, copy in cast("dict[str, str]", data["files"]).items()},
    }
    required = {*CORE_SECTIONS, *modules, allocator} if required is None else required
    sections: dict[str, Section] = {}
    for name in _names(sections, modules, config):
        plugin, needed = allocator if name == "tpu" else name, name in required
        try:
            model = _tpu_model(allocator, plugins, required=needed) if name == "tpu" else model_of(name, plugins)
            if model is not None:
                with calls.running(plugins.guard.describe(plugin), calls.VALIDATION, plugin):
                    restored = config.get(name)
                    if name != "command":  # a command reads secrets as shell variables
                        restored = restore(restored, secrets)
                    sections[name] = _read_section(name, model, restored, context, drop_invalid=drop_invalid)
        except TpuxError as error:
            if needed or name == "tpu":
                raise
            log.warning("section %s is ignored: %s", name, error)  # its plugin may have been uninstalled
    return Resolved(sections, modules, cast("str | None", data["environment"]), allocator)


def _names(sections: Mapping[str, Section], modules: Iterable[str], written: Iterable[str]) -> Iterator[str]:
    """Yield the names of a job's sections: core's, then those of plugins, which core's select."""
    yield from CORE_SECTIONS
    own = [name for name in written if name not in CORE_SECTIONS]
    yield from plugins_with_section(sections, named_plugins(sections, modules), own)


def _tpu_model(allocator: str, plugins: Plugins, *, required: bool) -> type[Section]:
    """Return the model of the section `tpu`; core's keys alone if the allocator is not usable and is not required."""
    try:
        return tpu_model(allocator, plugins)
    except UnusablePluginError:
        if required:
            raise
        return OtherTpuSection


def _read_section(
    name: str, model: type[Section], data: JsonValue, context: Mapping[str, object], *, drop_invalid: bool
) -> Section:
    data = drop_unset(model, data)
    while True:
        try:
            return model.model_validate(data, context=dict(context))
        except ValidationError as error:
            keys = {str(each["loc"][0]) for each in error.errors() if each["loc"]}
            details = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            invalid = InvalidSectionError(name, details)
            may_drop = drop_invalid and isinstance(data, dict) and not keys.isdisjoint(data) and "release" not in keys
            if not may_drop or not isinstance(data, dict):
                raise invalid from error
            log.warning("%s; left out", invalid.message)
            data = {key: value for key, value in data.items() if key not in keys}

"""Load and validate a config: on failure report every error at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.config.document import Document, MappingNode, Node, Source, Span, location_of, placeholders, scalars
from tpux.config.interpolate import Interpolation
from tpux.config.override import command_as_mapping, drop_unused_tpu_keys, override
from tpux.config.resolved import Loaded, job_variables, section_data, with_name
from tpux.config.script import check_arguments
from tpux.config.secrets import MASK, exposed_secrets, mask
from tpux.config.select import (
    Selection,
    Selector,
    check_disabled,
    check_finished_by,
    check_required,
    check_transport,
    check_workers,
    count_workers,
    ignored_section,
)
from tpux.config.validate import (
    DEFAULT_ALLOCATOR,
    OtherTpuSection,
    allocator_models,
    ask,
    model_of,
    section_names,
    tpu_model,
    validate,
    wraps_transport,
)
from tpux.config.yaml import parse, read
from tpux.errors import ConfigError, Problem, TpuxError
from tpux.model.sections import (
    CORE_SECTIONS,
    CommandSection,
    JobSection,
    PluginsSection,
    Section,
    SetupSection,
    TpuSection,
    keys_of,
)
from tpux.plugin import spec
from tpux.plugin.catalog import did_you_mean
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import transports

if TYPE_CHECKING:
    from tpux.config.stored import Stored
    from tpux.model.json import JsonValue


def load(
    path: Path, overrides: Sequence[str], *, plugins: Plugins, environ: Mapping[str, str], stored: Stored | None
) -> Loaded:
    """Parse, override, interpolate, validate and select; documented at `tpux.config.load`."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    source = Source(str(path), stored.text) if stored else read(path)
    names = section_names(plugins)
    file_root = command_as_mapping(_parse_root(source, problems))
    document = _interpolate(override(file_root, overrides, names, problems), source, names, problems, warnings)
    document = drop_unused_tpu_keys(document, file_root, plugins, warnings)
    validator = _Validator(path, document, plugins, environ, problems, warnings, stored)
    core = validator.core_sections()
    job, tpu, setup, command = core.get("job"), core.get("tpu"), core.get("setup"), core.get("command")
    selection, trusted = None, list[str]()
    if isinstance(command, CommandSection):
        trusted = command.finished_by
    if isinstance(job, JobSection) and isinstance(tpu, TpuSection) and isinstance(setup, SetupSection):
        selection = Selector(document, plugins, problems, warnings).select(job, tpu, setup, trusted)
    sections = {**core, **validator.plugin_sections(selection)}
    if isinstance(tpu, TpuSection):
        sections |= validator.transport_sections(sections)
    workers = None
    if isinstance(tpu, TpuSection) and "tpu" not in validator.invalid:
        workers = count_workers(tpu, document, problems)
        if stored is None:  # of a stored job it is reported where it is called: it may be reinstalled meanwhile
            check_transport(tpu, plugins, document, problems)
    if isinstance(command, CommandSection):
        check_workers(command, workers, document, problems)
        check_arguments(command, document, problems)
        check_required(command, sections, document, problems)
    if selection is not None:
        check_finished_by(sections, selection, plugins, document, problems, warnings)
    if selection is not None and isinstance(disabling := core.get("plugins"), PluginsSection):
        check_disabled(disabling, selection, trusted, plugins.names(), document, warnings)
    if problems or selection is None:
        raise ConfigError(_sorted(mask(problem, validator.secrets) for problem in problems))
    return Loaded(
        path=path,
        text=source.text,
        overrides=tuple(overrides),
        sections=sections,
        modules=selection.modules,
        environment=selection.environment,
        allocator=selection.allocator,
        workers=workers,
        secrets=validator.secrets,
        files=validator.files,
        home=validator.home,
        warnings=tuple(_sorted(mask(warning, validator.secrets) for warning in warnings)),
        _nodes={name: entry.value for name, entry in document.entries.items()},
    )


def _parse_root(source: Source, problems: list[Problem]) -> MappingNode:
    """Return the config as written; raise ConfigError if it is not a mapping."""
    root = parse(source, problems)
    if isinstance(root, MappingNode):
        return root
    hint = "for example command: {cmd: python train.py}"
    if root is not None:
        problems.append(Problem(root.span.location, "a config must be a mapping of sections", hint))
    elif not problems:
        problems.append(Problem(source.location(0), "the config is empty", hint))
    raise ConfigError(problems)


def _interpolate(
    root: MappingNode, source: Source, names: set[str], problems: list[Problem], warnings: list[Problem]
) -> Document:
    interpolation = Interpolation(root, names, problems, warnings)
    entries = {}
    for name, entry in root.entries.items():
        if name in names:
            entries[name] = replace(entry, value=interpolation.section(name))
        else:
            hint = did_you_mean(name, names) or f"the sections are {', '.join(sorted(names))}"
            problems.append(Problem(entry.key.location, f"unknown section {name!r}", hint))
    return Document(entries, Span(source))


class _Validator:
    """Validates the sections of one config.

    Attributes:
        secrets: the value of each `${env:NAME}` in the sections validated so far.
        home: what `~` in a path on this machine stands for.
        files: the local files that they name, each with where it is read: at its place, or the job's copy.
        invalid: the sections with errors.
    """

    def __init__(
        self,
        path: Path,
        document: Document,
        plugins: Plugins,
        environ: Mapping[str, str],
        problems: list[Problem],
        warnings: list[Problem],
        stored: Stored | None,
    ) -> None:
        self.secrets: dict[str, str] = {}
        self.files: dict[Path, Path] = {}
        self.home = stored.home if stored else env.user_home()
        self.invalid: set[str] = set()
        self._path = path
        self._document = document
        self._plugins = plugins
        self._environ = environ
        self._problems = problems
        self._warnings = warnings
        self._copies: Mapping[Path, Path] = stored.copies if stored else {}
        self._stored = stored is not None

    def core_sections(self) -> dict[str, Section]:
        """Return core's sections that are valid."""
        if "command" not in self._document.entries:
            hint = "for example command: {cmd: python train.py}"
            self._problems.append(Problem(self._document.start.location, "missing section 'command'", hint))
        sections = {}
        for name, model in CORE_SECTIONS.items():
            if name == "command" and name not in self._document.entries:
                continue
            data = self._data(name, active=True)
            key = self._document.span(name)
            section = self._validate(name, self._tpu_model(data) if name == "tpu" else model, data, key, active=True)
            if section is not None:
                sections[name] = section
        return sections

    def _tpu_model(self, tpu: JsonValue) -> type[Section]:
        allocator = (tpu.get("allocation_mode") if isinstance(tpu, dict) else None) or DEFAULT_ALLOCATOR
        try:
            if not isinstance(allocator, str) or not self._plugins.implements(allocator, spec.provision):
                return OtherTpuSection
        except TpuxError:  # reported where the allocator is selected
            return OtherTpuSection
        try:
            return tpu_model(allocator, self._plugins)
        except TpuxError as error:
            location = self._document.span("tpu", "allocation_mode").location
            self._problems.append(Problem(location, error.message, error.hint))
            return OtherTpuSection

    def plugin_sections(self, selection: Selection | None) -> dict[str, Section]:
        """Return the valid sections of plugins that are selected, or present if nothing else has to select them."""
        named_at = selection.named_at if selection else {}
        present = [
            name for name in self._document.entries if name not in CORE_SECTIONS and self._document.section(name)
        ]
        sections = {}
        for name in dict.fromkeys([*present, *named_at]):
            if name in CORE_SECTIONS:
                continue
            if name in self._plugins.names():
                section = self._plugin_section(name, named_at.get(name))
                if section is not None:
                    sections[name] = section
            elif name not in named_at:  # else it is an error, which is reported where it is named
                self._warnings += ignored_section(name, self._document.span(name).location, self._plugins)
        return sections

    def transport_sections(self, sections: Mapping[str, Section]) -> dict[str, Section]:
        """Return the default sections of transports that wrap another one, where the config does not mention them."""
        span, added = self._document.span("tpu", "allocation_mode"), dict[str, Section]()
        try:
            while (name := transports({**sections, **added})[-1]) not in {*sections, *added} and self._wraps(name):
                if (section := self._plugin_section(name, span)) is None:
                    break
                added[name] = section
        except TpuxError as error:
            self._problems.append(Problem(span.location, error.message, error.hint))
        return added

    def _wraps(self, transport: str) -> bool:
        try:
            return wraps_transport(model_of(transport, self._plugins))
        except TpuxError:  # reported where the transport is called
            return False

    def _plugin_section(self, name: str, named_at: Span | None) -> Section | None:
        node = self._document.section(name)
        key = self._document.span(name) if name in self._document.entries or named_at is None else named_at
        try:
            model = model_of(name, self._plugins)
            active = named_at is not None or not self._inactive_unless_selected(name)
        except TpuxError as error:
            if named_at is not None and isinstance(error, PluginError):
                self._problems.append(Problem(key.location, error.message, error.hint))
            elif named_at is None:  # else it was reported where the plugin is selected
                message = f"section {name!r} is not validated: {error.message}"
                self._warnings.append(Problem(key.location, message, error.hint))
            return None
        if model is not None:
            section = self._validate(name, model, self._data(name, active=active), key, active=active)
            return section if active else None
        if node is not None and not (isinstance(node, MappingNode) and not node.entries):
            self._problems.append(Problem(key.location, f"plugin {name!r} has no settings", "remove the section"))
        return None

    def _inactive_unless_selected(self, name: str) -> bool:
        """Return True if the section has no effect until another key selects the plugin.

        Transports are always active: any allocator may need them. So are listeners, which nothing selects.
        """
        hooks = set(self._plugins.status(name).hooks)
        selectable = {hook.__name__ for hook in (spec.check, spec.setup, spec.run, spec.provision)}
        return bool(hooks & selectable) and hooks.isdisjoint({spec.connect.__name__, spec.on_event.__name__})

    def _data(self, name: str, *, active: bool) -> JsonValue:
        """Return a section's content with its placeholders substituted, and collect its secrets if it is active."""
        node = self._document.section(name)
        data: JsonValue = {}
        if node is not None:
            if active:
                self._collect_secrets(name)
            data = section_data(name, node, job_variables(self._path), lambda secret: self.secrets.get(secret, MASK))
        return with_name(data, self._path) if name == "job" else data

    def _validate(self, name: str, model: type[Section], data: JsonValue, key: Span, *, active: bool) -> Section | None:
        ambiguous: dict[str, tuple[Path, Path]] = {}
        context = {
            "directory": self._path.absolute().parent,
            "current_directory": None if self._stored else env.current_directory(),
            "ambiguous": ambiguous,
            "files": self.files if active else {},
            "check_files": active,
            "copies": self._copies,
            "home": self.home,
        }
        problems: list[Problem] = []
        node = self._document.section(name)
        section = validate(
            name,
            model,
            data,
            node,
            key=key,
            context=context,
            allocators_with=self._allocators_with,
            problems=problems,
        )
        unset = self._with_unset_secret(node)
        problems = [problem for problem in problems if problem.where not in unset]  # they would be about the mask
        if section is not None and node is not None:
            exposed = ask(name, section, Section.exposed_keys, key.location, problems)
            problems += exposed_secrets(name, node, exposed or {})
        if problems:
            self.invalid.add(name)
            self._problems += problems
        self._warn_of_files(name, ambiguous if active else {})
        warnings = ask(name, section, Section.warnings, key.location, self._problems) if section else None
        for path, why in (warnings or {}).items():
            location = self._document.span(name, path).location
            self._warnings.append(Problem(location, f"{name}.{path} has no effect: {why}"))
        return section

    def _warn_of_files(self, name: str, ambiguous: Mapping[str, tuple[Path, Path]]) -> None:
        """Report which of two places a relative path was found in.

        Args:
            name: the section's name.
            ambiguous: for such a path the file that is used, and the other place.
        """
        node = self._document.section(name)
        for value, (used, other) in ambiguous.items():
            found = f"{other} exists too" if other.is_file() else f"{other} does not exist"
            message = f"{value} is read from {used}; {found}"
            location = (node and location_of(node, value)) or self._document.span(name).location
            self._warnings.append(Problem(location, message))

    def _with_unset_secret(self, node: Node | None) -> set[str]:
        """Return the positions of the values that have a secret whose value is not known."""
        return {
            scalar.span.location
            for scalar in (scalars(node) if node else ())
            if any(each.kind == "env" and each.name not in self.secrets for each in placeholders(scalar))
        }

    def _allocators_with(self, key: str) -> list[str]:
        """Return the allocators that have a key of the section `tpu`."""
        return [name for name, model in allocator_models(self._plugins).items() if key in keys_of(model)]

    def _collect_secrets(self, section: str) -> None:
        for placeholder in placeholders(self._document.entries[section].value):
            name = placeholder.name
            if placeholder.kind != "env":
                continue
            if name in self._environ:
                self.secrets[name] = self._environ[name]
            else:
                message = f"environment variable {name} is not set"
                self._problems.append(Problem(placeholder.location, message, f"export {name}=..."))


def _sorted(problems: Iterable[Problem]) -> list[Problem]:
    """Return each problem once, by line and column; those of arguments first."""
    return sorted(dict.fromkeys(problems), key=_position)


def _position(problem: Problem) -> tuple[int, int]:
    match = re.search(r":(\d+):(\d+)$", problem.where)
    return (int(match[1]), int(match[2])) if match else (0, 0)

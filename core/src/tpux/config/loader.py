"""Load and validate a config: on failure report every error at once."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tpux import env
from tpux.config import plugin_files
from tpux.config.arguments import SEPARATOR
from tpux.config.document import (
    Document,
    MappingNode,
    ScalarNode,
    Source,
    Span,
    location_of,
    node_at,
    placeholders,
    scalars,
)
from tpux.config.error_messages import SectionErrors
from tpux.config.interpolate import Interpolation
from tpux.config.models import (
    DEFAULT_ALLOCATOR,
    OtherTpuSection,
    drop_unset,
    model_of,
    section_names,
    tpu_model,
    unknown_section_hint,
)
from tpux.config.override import as_sections, drop_unused_defaults, drop_unused_tpu_keys, override
from tpux.config.resolved import Loaded, job_variables, section_data, with_name
from tpux.config.secrets import MASK, exposed_secrets, literal_secrets, mask
from tpux.config.select import check_sections, report_ignored_section, select
from tpux.config.settings import merge, read_files, read_settings, with_alias
from tpux.config.yaml import parse, read
from tpux.errors import ConfigError, Problem, TpuxError
from tpux.model.sections import CORE_SECTIONS, Section
from tpux.plugin import spec
from tpux.plugin.entrypoints import is_interrupt, reason
from tpux.plugin.guard import PluginError
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import plugins_with_section

if TYPE_CHECKING:
    from tpux.config.stored import Stored
    from tpux.model.json import JsonValue

log = logging.getLogger(__name__)
_EXAMPLE = "for example command: {cmd: python train.py}"


def load(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    plugins: Plugins,
    environ: Mapping[str, str] = os.environ,
    stored: Stored | None = None,
) -> Loaded:
    """Load and validate a config: parse, override, interpolate, validate and select.

    Args:
        path: its file.
        overrides: `section.key=value` arguments, which override the file's values.
        plugins: the plugins that define its sections.
        environ: the variables that `${env:NAME}` refers to.
        stored: the file's content and those of the files that it names, as a job has them; None reads the files.

    Raises:
        ConfigError: it is invalid; has all errors, in the order of the file.
    """
    problems: list[Problem] = []
    warnings: list[Problem] = []
    source = Source(str(path), stored.text) if stored else read(path)
    root = parse(source, problems)
    if not isinstance(root, MappingNode):
        if root is not None:
            problems.append(Problem(root.span.location, "a config must be a mapping of sections", _EXAMPLE))
        elif not problems:
            problems.append(Problem(source.location(0), "the config is empty", _EXAMPLE))
        raise ConfigError(problems)
    written = as_sections(root)
    settings = read_settings([Source(*each) for each in stored.settings] if stored else read_files(), problems)
    words = [*overrides]
    for number, word in enumerate(words[: words.index(SEPARATOR)] if SEPARATOR in words else words):
        words[number] = with_alias(word, settings.aliases)
    base = merge(as_sections(settings.defaults), written) if settings.defaults else written
    root = base if isinstance(base, MappingNode) else written
    home = stored.home if stored else env.user_home()
    context = {
        "directory": path.absolute().parent,
        "current_directory": None if stored else env.current_directory(),
        "home": home,
    }
    plugins, own = plugin_files.plugins_of(root, context, plugins, stored)
    root, taken = override(
        drop_unused_defaults(root, words, settings.sources, plugins), words, plugins, problems, warnings
    )
    document = _interpolate(root, source, plugins, problems, warnings)
    document = drop_unused_tpu_keys(document, written, plugins, warnings)
    typed = dict(zip(words, overrides, strict=True))
    taken = tuple(typed[word] for word in taken)
    loaded = Loaded(path, source.text, tuple(overrides), document, plugins, home, problems, warnings, taken)
    loaded.settings = tuple((each.name, each.text) for each in settings.sources)
    loaded.sources = {**stored.sources} if stored else {}
    loaded.files, loaded.plugin_files = dict(own), own
    _Sections(loaded, environ, stored, context).validate()
    check_sections(loaded, is_stored=stored is not None)
    if problems:
        raise ConfigError(_sorted(problems, loaded.secrets))
    loaded.warnings = _sorted(warnings, loaded.secrets)
    plugins.conceal(loaded.secrets.values())
    return loaded


def _interpolate(
    root: MappingNode, source: Source, plugins: Plugins, problems: list[Problem], warnings: list[Problem]
) -> Document:
    names = section_names(plugins)
    interpolation = Interpolation(root, names, problems, warnings)
    entries = {}
    for name, entry in root.entries.items():
        if name in names:
            entries[name] = replace(entry, value=interpolation.section(name))
        else:
            hint = unknown_section_hint([name], plugins)
            problems.append(Problem(entry.key.location, f"unknown section {name!r}", hint))
    return Document(entries, Span(source))


class _Sections:
    """Validates the sections of a config: core's, which select plugins, then those of the plugins."""

    def __init__(
        self, loaded: Loaded, environ: Mapping[str, str], stored: Stored | None, context: Mapping[str, object]
    ) -> None:
        self._loaded = loaded
        self._document = loaded.document
        self._plugins = loaded.plugins
        self._environ = environ
        self._stored = stored
        self._context = context

    def validate(self) -> None:
        loaded = self._loaded
        if "command" not in self._document.entries:
            loaded.problems.append(self._no_command())
        for name, model in CORE_SECTIONS.items():
            if name != "command" or name in self._document.entries:
                data = self._data(name, active=True)
                self._validate(name, self._tpu_model(data) if name == "tpu" else model, data, active=True)
        plugin_files.check(loaded)
        select(loaded)
        document = self._document
        present = [name for name in document.entries if name not in CORE_SECTIONS and document.section(name)]
        span = document.span("tpu", "allocation_mode")  # it selects the transports
        try:
            for name in plugins_with_section(loaded.sections, loaded.named_at, present):
                installed, named_at = name in self._plugins.names(), loaded.named_at.get(name)
                if installed and (named_at or name in present):
                    self._validate_plugin(name, named_at)
                elif installed and self._plugins.can_load(name) and self._plugins.implements(name, spec.connect):
                    self._validate_plugin(name, span)
                elif name in present and not named_at:  # else it is reported where it is named
                    report_ignored_section(loaded, name, is_stored=self._stored is not None)
        except TpuxError as error:
            loaded.error(span, error.message, error.hint)

    def _no_command(self) -> Problem:
        """Return the error for a config without a command, such as one of a worker of jobman's task queue."""
        tasks = node_at(self._document.section("job"), ("queue", "config"))
        if not isinstance(tasks, ScalarNode):
            return Problem(self._document.start.location, "missing section 'command'", _EXAMPLE)
        message = (
            f"the commands of this config are the tasks of {tasks.raw}, and no plugin for task queues is installed"
        )
        hint = "create a job for each task, with its run as the command: tpux create CONFIG 'command.cmd=...'"
        return Problem(tasks.span.location, message, hint)

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
            self._loaded.error(("tpu", "allocation_mode"), error.message, error.hint)
            return OtherTpuSection

    def _validate_plugin(self, name: str, named_at: Span | None) -> None:
        """Validate the section of a plugin, which has no effect if nothing names a plugin that something else selects.

        Transports are always active: any allocator may need them. So are listeners, which nothing selects.
        """
        node = self._document.section(name)
        key = self._document.span(name) if name in self._document.entries or named_at is None else named_at
        try:
            model = model_of(name, self._plugins)
            hooks = set(self._plugins.status(name).hooks) if named_at is None else set[str]()
        except TpuxError as error:
            if named_at is not None and isinstance(error, PluginError):
                self._loaded.error(key, error.message, error.hint)
            elif named_at is None:  # else it was reported where the plugin is selected
                self._loaded.warn(key, f"section {name!r} is not validated: {error.message}", error.hint)
            return
        selectable = {hook.__name__ for hook in (spec.check, spec.setup, spec.run, spec.provision)}
        always = {spec.connect.__name__, spec.on_event.__name__}
        if model is not None:
            active = not hooks & selectable or bool(hooks & always)
            self._validate(name, model, self._data(name, active=active), key, active=active)
        elif node is not None and not (isinstance(node, MappingNode) and not node.entries):
            self._loaded.error(key, f"plugin {name!r} has no settings", "remove the section")

    def _data(self, name: str, *, active: bool) -> JsonValue:
        """Return a section's content with its placeholders substituted, and collect its secrets if it is active."""
        node, path, secrets = self._document.section(name), self._loaded.path, self._loaded.secrets
        for each in placeholders(node) if node is not None and active else ():
            if each.kind == "env" and each.name in self._environ:
                secrets[each.name] = self._environ[each.name]
            elif each.kind == "env":
                message = f"environment variable {each.name} is not set"
                self._loaded.problems.append(Problem(each.location, message, f"export {each.name}=..."))
        data: JsonValue = {}
        if node is not None:
            data = section_data(name, node, job_variables(path), lambda secret: secrets.get(secret, MASK))
        return with_name(data, path) if name == "job" else data

    def _validate(
        self, name: str, model: type[Section], data: JsonValue, key: Span | None = None, *, active: bool
    ) -> None:
        """Add a section as its model if it is active; only its valid keys if others are invalid.

        The valid keys determine what else to validate, so that all errors are reported at once.
        """
        loaded, node, key = self._loaded, self._document.section(name), key or self._document.span(name)
        ambiguous: dict[str, tuple[Path, Path]] = {}
        context = {
            **self._context,
            "ambiguous": ambiguous,
            "files": loaded.files if active else {},
            "check_files": active,
            "copies": self._stored.copies if self._stored else {},
        }
        section, given, before = None, drop_unset(model, data), len(loaded.problems)
        try:
            section = model.model_validate(given, context=context)
        except ValidationError as error:
            errors = SectionErrors(name, model, node, key, self._plugins)
            # Of a value with a secret that is not set they would be about the mask.
            unset = {
                scalar.span.location
                for scalar in (scalars(node) if node else ())
                if any(each.kind == "env" and each.name not in loaded.secrets for each in placeholders(scalar))
            }
            found = errors.problems(error.errors(include_url=False))
            loaded.problems += [problem for problem in found if problem.where not in unset]
            section = _valid_part(model, given, error)
        # A plugin's own validator may raise what pydantic does not expect.
        except BaseException as error:
            if is_interrupt(error):
                raise
            log.debug("the model of section %s failed", name, exc_info=True)
            loaded.error(key, f"plugin {name!r} failed to validate its section: {reason(error)}")
        if section is not None and node is not None:
            loaded.problems += exposed_secrets(name, node, loaded.ask(name, section, Section.exposed_keys, key) or {})
            loaded.problems += literal_secrets(name, node, loaded.ask(name, section, Section.secret_keys, key) or {})
        if len(loaded.problems) > before:
            loaded.invalid.add(name)
        for value, (used, other) in ambiguous.items() if active else ():
            found_too = f"{other} exists too" if other.is_file() else f"{other} does not exist"
            location = (node and location_of(node, value)) or self._document.span(name).location
            loaded.warnings.append(Problem(location, f"{value} is read from {used}; {found_too}"))
        if section is not None:
            for path, why in (loaded.ask(name, section, Section.warnings, key) or {}).items():
                loaded.warn((name, path), f"{name}.{path} has no effect: {why}")
            if active:
                loaded.sections[name] = section


def _valid_part(model: type[Section], given: JsonValue, error: ValidationError) -> Section | None:
    invalid = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
    if not invalid or not isinstance(given, dict):
        return None
    try:
        valid = {name: value for name, value in given.items() if name not in invalid}
        return model.model_validate(valid, context={"check_files": False})
    except ValidationError:  # a required key is missing
        return None


def _sorted(problems: Iterable[Problem], secrets: Mapping[str, str]) -> list[Problem]:
    """Return each problem once with masked secrets, by line and column; those of arguments first."""

    def position(problem: Problem) -> tuple[int, int]:
        match = re.search(r":(\d+):(\d+)$", problem.where)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    return sorted(dict.fromkeys(mask(problem, secrets) for problem in problems), key=position)

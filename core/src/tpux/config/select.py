"""Selection of modules, environment and allocator: the mere presence of a section selects nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpux import env
from tpux.config.document import Document, Span
from tpux.config.validate import ask
from tpux.errors import Problem, TpuxError
from tpux.model.sections import (
    CORE_SECTIONS,
    CommandSection,
    JobSection,
    PluginsSection,
    Section,
    SetupSection,
    TpuSection,
)
from tpux.plugin import spec
from tpux.plugin.catalog import DIST_OF, LISTENERS, RULES, did_you_mean
from tpux.plugin.entrypoints import unknown_disabled_plugins
from tpux.plugin.guard import PluginError, call_section, wrong_section_answer
from tpux.plugin.manager import Plugins

_SELECTED_BY_SECTION = ("ssh", "code", "gcsfuse", "script")
"""The modules that their sections select if the config has no `setup.modules`, in order; the environment follows."""


@dataclass(frozen=True)
class Selection:
    """The plugins that a config selects.

    Attributes:
        modules: what prepares the workers, in order, the environment included.
        environment: the module that wraps the command.
        allocator: what gets the machines.
        named_at: where the config names each.
    """

    modules: tuple[str, ...]
    environment: str | None
    allocator: str
    named_at: Mapping[str, Span]


class Selector:
    """Determines what a config selects, and checks that it is installed.

    Args:
        document: the config.
        plugins: the plugins.
        problems: receives errors.
        warnings: receives warnings.
    """

    def __init__(self, document: Document, plugins: Plugins, problems: list[Problem], warnings: list[Problem]) -> None:
        self._document = document
        self._plugins = plugins
        self._problems = problems
        self._warnings = warnings

    def select(self, job: JobSection, tpu: TpuSection, setup: SetupSection, finished_by: list[str]) -> Selection:
        """Return what the three sections and `command.finished_by` select, without what is not usable."""
        rule = self._check_rule(job)
        named = self._named_modules(job, setup)
        modules = tuple(name for name, span in named.items() if self._is_module(name, span, job))
        environments = [name for name in modules if self._plugins.implements(name, spec.run)]
        for name in environments[1:]:
            message = f"{environments[0]} and {name} are both environments; a command runs in one"
            self._problems.append(Problem(named[name].location, message, "remove one of them"))
        named_at = {name: named[name] for name in modules}
        span = self._document.span("tpu", "allocation_mode")
        if self._is_usable(tpu.allocation_mode, span, "allocator", self._implements_any(spec.provision)):
            named_at[tpu.allocation_mode] = span
        for index, name in enumerate(finished_by):
            span = self._document.span("command", "finished_by", index)
            if self._is_usable(name, span, "detector", self._implements_any(spec.classify_failure)):
                named_at[name] = span
        return Selection(modules, environments[0] if environments else None, tpu.allocation_mode, {**rule, **named_at})

    def _named_modules(self, job: JobSection, setup: SetupSection) -> dict[str, Span]:
        """Return the modules that the config names, in order, and where."""
        if setup.modules is not None:
            return self._listed_modules(setup.modules, job.env_type)
        names = {name: self._document.span(name) for name in _SELECTED_BY_SECTION if self._document.section(name)}
        return {**names, job.env_type: self._document.span("job", "env_type")} if job.env_type else names

    def _listed_modules(self, modules: list[str], env_type: str | None) -> dict[str, Span]:
        names: dict[str, Span] = {}
        for index, name in enumerate(modules):
            span = self._document.span("setup", "modules", index)
            if name in names:
                self._problems.append(Problem(span.location, f"duplicate module {name!r}", "list it once"))
            elif name == "command":  # jobman's lists contain the command, which always runs
                continue
            elif self._is_unwanted(name):
                message = f"module {name} is left out: its section has no content"
                self._warnings.append(Problem(span.location, message, f"fill in the section, or remove {name} here"))
            else:
                names[name] = span
        self._check_unlisted(names)
        if env_type and env_type not in names:
            location = self._document.span("job", "env_type").location
            message = f"environment {env_type!r} is not used: it is not in setup.modules"
            self._warnings.append(Problem(location, message, "add it there or remove it here"))
        return names

    def _is_unwanted(self, name: str) -> bool:
        """Return True if a listed module's section is there without content, as in jobman's configs, and needs some."""
        if name not in self._document.entries or self._document.section(name) is not None:
            return False
        try:
            model = self._plugins.call_one(name, spec.config_section)
            is_environment = self._plugins.implements(name, spec.run)
        except TpuxError:  # reported where the module is selected
            return False
        needs_content = model is not None and any(field.is_required() for field in model.model_fields.values())
        return needs_content and not is_environment

    def _check_unlisted(self, named: Mapping[str, Span]) -> None:
        """Warn about the sections of modules that `setup.modules` does not list.

        A config may have sections of several environments, and that of a transport is used without being listed.
        """
        for name in self._document.entries:
            if name in named or name not in self._plugins.names() or self._document.section(name) is None:
                continue
            try:
                other = self._implements_any(spec.run, spec.connect, spec.provision)(name)
                unlisted = not other and self._implements_any(spec.check, spec.setup)(name)
            except TpuxError:  # reported where the section is validated
                continue
            if unlisted:
                message = f"section {name!r} has no effect: setup.modules does not list {name}"
                hint = f"add {name} to setup.modules, or remove the section"
                self._warnings.append(Problem(self._document.span(name).location, message, hint))

    def _is_module(self, name: str, span: Span, job: JobSection) -> bool:
        if name == job.env_type:
            return self._is_usable(name, span, "environment", self._implements_any(spec.run))
        return self._is_usable(name, span, "module", self._implements_any(spec.check, spec.setup, spec.run))

    def _check_rule(self, job: JobSection) -> dict[str, Span]:
        """Return the plugin that the config names as its rule, and where; nothing for a rule of core."""
        if job.rule is not None and job.rule not in RULES:
            hint = did_you_mean(job.rule, RULES) or f"rules are {', '.join(RULES)}, and the names of rule plugins"
            span = self._document.span("job", "rule")
            if self._is_usable(job.rule, span, "rule", self._implements_any(spec.on_preempt), hint):
                return {job.rule: span}
        return {}

    def _implements_any(self, *hooks: Callable[..., object]) -> Callable[[str], bool]:
        return lambda name: any(self._plugins.implements(name, hook) for hook in hooks)

    def _is_usable(self, name: str, span: Span, role: str, test: Callable[[str], bool], hint: str = "") -> bool:
        """Return True if the plugin is installed and has that role; otherwise report it."""
        try:
            if test(name):
                return True
            self._problems.append(Problem(span.location, f"plugin {name!r} is not usable as {role}", hint))
        except TpuxError as error:
            self._problems.append(Problem(span.location, f"{role} {name!r}: {error.message}", hint or error.hint))
        return False


def check_disabled(
    section: PluginsSection,
    selection: Selection,
    finished_by: list[str],
    installed: list[str],
    document: Document,
    warnings: list[Problem],
) -> None:
    """Warn about names in `plugins.disabled` that have no effect, or an effect that cannot be meant.

    And about names in `$TPUX_DISABLED_PLUGINS` that have none.
    """
    for index, name in enumerate(section.disabled):
        location = document.span("plugins", "disabled", index).location
        if name in finished_by:
            message = f"plugins.disabled names the detector {name!r}, which command.finished_by needs"
            warnings.append(Problem(location, message, "remove it from one of them; its word does not count"))
        elif name in selection.named_at:
            message = f"plugin {name!r} is used although plugins.disabled names it: the config selects it"
            warnings.append(Problem(location, message, "it is disabled as a detector, solver and listener only"))
        elif name not in installed:
            message = f"plugins.disabled names {name!r}, which is not installed"
            warnings.append(Problem(location, message, did_you_mean(name, installed)))
    warnings += unknown_disabled_plugins()


def check_finished_by(
    sections: Mapping[str, Section],
    selection: Selection,
    plugins: Plugins,
    document: Document,
    problems: list[Problem],
    warnings: list[Problem],
) -> None:
    """Warn about sections and keys of detectors that have no effect because `command.finished_by` does not name them.

    Args:
        sections: the valid sections.
        selection: what the config selects, the detectors of `command.finished_by` included.
        plugins: the installed plugins.
        document: the config, for the positions of warnings.
        problems: receives the errors of plugins.
        warnings: receives the warnings.
    """
    for name, section in sections.items():
        if name in CORE_SECTIONS or name in selection.named_at:
            continue
        why, hint = f"command.finished_by does not name {name}", f"add {name} to command.finished_by, or remove the "
        if _prepares_command_if_trusted(name, plugins):
            message = f"section {name!r} does not affect the program: {why}"
            warnings.append(Problem(document.span(name).location, message, f"{hint}section"))
            continue
        for key in ask(name, section, Section.needs_finished_by, document.span(name).location, problems) or ():
            message = f"{name}.{key} has no effect: {why}"
            warnings.append(Problem(document.span(name, key).location, message, f"{hint}key"))


def check_required(
    command: CommandSection, sections: Mapping[str, Section], document: Document, problems: list[Problem]
) -> None:
    """Check that a detector can say what `command.require_finished` requires.

    Args:
        command: the section `command`.
        sections: the valid sections.
        document: the config, for the positions of errors.
        problems: receives the errors.
    """
    if not command.require_finished or any(name not in sections for name in command.finished_by):
        return
    reasons = [
        ask(name, sections[name], Section.never_finished, document.span(name).location, problems)
        for name in command.finished_by
    ]
    if all(reasons):
        message = f"no attempt could succeed with require_finished: {'; '.join(filter(None, reasons))}"
        hint = "add a detector to command.finished_by that says it, or configure this one"
        problems.append(Problem(document.span("command", "require_finished").location, message, hint))


def _prepares_command_if_trusted(name: str, plugins: Plugins) -> bool:
    """Return whether a plugin prepares the command, and nothing but `command.finished_by` can select it."""
    selecting = (spec.check, spec.setup, spec.run, spec.provision, spec.connect, spec.on_preempt)
    return (
        plugins.implements(name, spec.prepare_command)
        and plugins.implements(name, spec.classify_failure)
        and not any(plugins.implements(name, hook) for hook in selecting)
    )


def ignored_section(name: str, location: str, plugins: Plugins) -> list[Problem]:
    """Return the warning about a section whose plugin is disabled, or is a listener that is not installed.

    Args:
        name: the section, for which there is no usable plugin.
        location: where it is.
        plugins: the installed plugins.
    """
    if name in plugins.names(disabled=True):
        hint = f"remove {name} from {env.DISABLED_PLUGINS} to use it"
        return [Problem(location, f"section {name!r} is ignored: the plugin {name} is disabled", hint)]
    if name in LISTENERS:
        message = f"section {name!r} is ignored: no installed plugin uses it"
        return [Problem(location, message, f"pip install {DIST_OF[name]}")]
    return []


def count_workers(tpu: TpuSection, document: Document, problems: list[Problem]) -> int | None:
    """Return the number of workers according to the allocator, None if it is not known yet."""
    try:
        count = call_section(tpu.allocation_mode, tpu, TpuSection.count_workers)
        if count is None or count >= 1:
            return count
        problem = f"expected 1 or more, or None, got {count}"
        raise wrong_section_answer(tpu.allocation_mode, TpuSection.count_workers, problem)
    except TpuxError as error:
        key = "allocation_mode" if isinstance(error, PluginError) else "accelerator"
        problems.append(Problem(document.span("tpu", key).location, error.message, error.hint))
        return None


def check_transport(tpu: TpuSection, plugins: Plugins, document: Document, problems: list[Problem]) -> None:
    """Check that the transport is installed that the allocator declares.

    Args:
        tpu: the section `tpu`.
        plugins: the installed plugins.
        document: the config, for the position of the error.
        problems: receives the error.
    """
    try:
        if not tpu.transport or plugins.implements(tpu.transport, spec.connect):
            return
        message, hint = f"plugin {tpu.transport!r} does not implement connect", ""
    except TpuxError as error:
        message, hint = error.message, error.hint
    location = document.span("tpu", "allocation_mode").location
    problems.append(Problem(location, f"transport of allocator {tpu.allocation_mode!r}: {message}", hint))


def check_workers(command: CommandSection, count: int | None, document: Document, problems: list[Problem]) -> None:
    """Check `command.workers` against the number of workers.

    Args:
        command: the section `command`.
        count: the number of workers, None if only the allocator knows it.
        document: the config, for the positions of errors.
        problems: receives the errors.
    """
    if command.workers == "all":
        return
    chosen = command.workers if isinstance(command.workers, list) else [command.workers]
    if not chosen:
        location = document.span("command", "workers").location
        problems.append(Problem(location, "command.workers is empty", 'set it to "all" or to a list of numbers'))
    for index, worker in enumerate(chosen):
        path = ("command", "workers", index) if isinstance(command.workers, list) else ("command", "workers")
        if worker in chosen[:index]:
            problems.append(Problem(document.span(*path).location, f"duplicate worker {worker}", "list it once"))
        elif count is not None and worker >= count:
            message = f"no worker {worker}: the job has {_workers(count)}, numbered from 0"
            problems.append(Problem(document.span(*path).location, message))


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"

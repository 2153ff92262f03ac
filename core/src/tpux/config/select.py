"""Selection of modules, environment and allocator: the mere presence of a section selects nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tpux import env
from tpux.config.document import Span
from tpux.config.resolved import Loaded
from tpux.config.script import check_arguments, warn_of_detached
from tpux.errors import TpuxError
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
from tpux.plugin.catalog import ALWAYS_USED, DIST_OF, LISTENERS, RULES, did_you_mean
from tpux.plugin.entrypoints import unknown_disabled_plugins
from tpux.plugin.guard import PluginError, call_section, wrong_section_answer
from tpux.plugin.manager import Plugins
from tpux.plugin.synonyms import meant

_SELECTED_BY_SECTION = ("ssh", "code", "gcsfuse", "script")
"""The modules that their sections select if the config has no `setup.modules`, in order; the environment follows."""
_Hooks = Sequence[Callable[..., object]]
_MODULE: _Hooks = (spec.check, spec.setup, spec.run)


# --- what the config selects --------------------------------------------------------------------


def select(loaded: Loaded) -> None:
    """Fill in what the sections `job`, `tpu` and `setup` and `command.finished_by` select, if these are valid.

    What is not usable is left out, and is an error.
    """
    job, tpu = loaded.section("job", JobSection), loaded.section("tpu", TpuSection)
    setup, command = loaded.section("setup", SetupSection), loaded.section("command", CommandSection)
    if job is None or tpu is None or setup is None:
        return
    at = loaded.document.span
    if job.rule is not None and job.rule not in RULES:
        known = meant("values", f"job.rule.{job.rule}") or job.rule
        hint = did_you_mean(known, RULES) or f"rules are {', '.join(RULES)}, and the names of rule plugins"
        _name(loaded, job.rule, at("job", "rule"), "rule", [spec.on_preempt], hint)
    environments: list[str] = []
    modules: list[str] = []
    for name, span in _named_modules(loaded, job, setup).items():
        is_environment = name == job.env_type
        role, hooks = ("environment", [spec.run]) if is_environment else ("module", _MODULE)
        if not _name(loaded, name, span, role, hooks):
            continue
        modules.append(name)
        if loaded.plugins.implements(name, spec.run):
            environments.append(name)
    for name in environments[1:]:
        message = f"{environments[0]} and {name} are both environments; a command runs in one"
        loaded.error(loaded.named_at[name], message, "remove one of them")
    _name(loaded, tpu.allocation_mode, at("tpu", "allocation_mode"), "allocator", [spec.provision])
    for index, name in enumerate(command.finished_by if command else ()):
        _name(loaded, name, at("command", "finished_by", index), "detector", [spec.classify_failure])
    loaded.modules, loaded.environment = tuple(modules), environments[0] if environments else None
    loaded.allocator = tpu.allocation_mode


def _name(loaded: Loaded, name: str, span: Span, role: str, hooks: _Hooks, hint: str = "") -> bool:
    """Return True and note where the plugin is named if it is installed and has that role; otherwise report it."""
    try:
        if _implements(loaded.plugins, name, hooks):
            loaded.named_at[name] = span
            return True
        loaded.error(span, f"plugin {name!r} is not usable as {role}", hint)
    except TpuxError as error:
        loaded.error(span, f"{role} {name!r}: {error.message}", hint or error.hint)
    return False


def _implements(plugins: Plugins, name: str, hooks: _Hooks) -> bool:
    return any(plugins.implements(name, hook) for hook in hooks)


def _named_modules(loaded: Loaded, job: JobSection, setup: SetupSection) -> dict[str, Span]:
    """Return the modules that the config names, in order, and where."""
    document, names = loaded.document, dict[str, Span]()
    if setup.modules is None:
        names = {name: document.span(name) for name in _SELECTED_BY_SECTION if document.section(name)}
        return {**names, job.env_type: document.span("job", "env_type")} if job.env_type else names
    for index, name in enumerate(setup.modules):
        span = document.span("setup", "modules", index)
        if name in names:
            loaded.error(span, f"duplicate module {name!r}", "list it once")
        elif name == "command":  # jobman's lists contain the command, which always runs
            continue
        elif _is_unwanted(loaded, name):
            hint = f"fill in the section, or remove {name} here"
            loaded.warn(span, f"module {name} is left out: its section has no content", hint)
        else:
            names[name] = span
    _check_unlisted(loaded, names)
    if job.env_type and job.env_type not in names:
        message = f"environment {job.env_type!r} is not used: it is not in setup.modules"
        loaded.warn(("job", "env_type"), message, "add it there or remove it here")
    return names


def _is_unwanted(loaded: Loaded, name: str) -> bool:
    """Return True if a listed module's section is there without content, as in jobman's configs, and needs some."""
    if name not in loaded.document.entries or loaded.document.section(name) is not None:
        return False
    try:
        model = loaded.plugins.call_one(name, spec.config_section)
        is_environment = loaded.plugins.implements(name, spec.run)
    except TpuxError:  # reported where the module is selected
        return False
    needs_content = model is not None and any(field.is_required() for field in model.model_fields.values())
    return needs_content and not is_environment


def _check_unlisted(loaded: Loaded, named: Mapping[str, Span]) -> None:
    """Warn about the sections of modules that `setup.modules` does not list.

    A config may have sections of several environments, and that of a transport is used without being listed.
    """
    for name in loaded.document.entries:
        if name in named or name not in loaded.plugins.names() or loaded.document.section(name) is None:
            continue
        try:
            other = _implements(loaded.plugins, name, [spec.run, spec.connect, spec.provision])
            unlisted = not other and _implements(loaded.plugins, name, [spec.check, spec.setup])
        except TpuxError:  # reported where the section is validated
            continue
        if unlisted:
            message = f"section {name!r} has no effect: setup.modules does not list {name}"
            loaded.warn((name,), message, f"add {name} to setup.modules, or remove the section")


def report_ignored_section(loaded: Loaded, name: str, *, is_stored: bool) -> None:
    """Report a section whose plugin is disabled, or is not installed and would use it.

    Args:
        loaded: the config.
        name: the section.
        is_stored: whether a job has the config: it runs on without the plugin.
    """
    if name in loaded.plugins.names(disabled=True):
        hint = f"remove {name} from {env.DISABLED_PLUGINS} to use it"
        loaded.warn((name,), f"section {name!r} is ignored: the plugin {name} is disabled", hint)
    elif name in LISTENERS:
        message = f"section {name!r} is ignored: no installed plugin uses it"
        loaded.warn((name,), message, f"pip install {DIST_OF[name]}")
    elif name in ALWAYS_USED and not is_stored:
        loaded.error((name,), f"section {name!r}: no plugin {name!r} is installed", f"pip install {DIST_OF[name]}")


# --- whether the sections fit together ----------------------------------------------------------


def check_sections(loaded: Loaded, *, is_stored: bool) -> None:
    """Check what depends on several sections, and fill in the number of workers.

    Args:
        loaded: the config, with its valid sections and what it selects.
        is_stored: whether a job has it: then the transport is reported where it is called, because it may be
            reinstalled meanwhile.
    """
    tpu, command = loaded.section("tpu", TpuSection), loaded.section("command", CommandSection)
    if tpu is not None and "tpu" not in loaded.invalid:
        _count_workers(loaded, tpu)
        if not is_stored:
            _check_transport(loaded, tpu)
    if command is not None:
        _check_workers(loaded, command)
        check_arguments(loaded, command)
        warn_of_detached(loaded, command)
        _check_required(loaded, command)
    if loaded.allocator:  # the sections that select plugins are valid
        _check_finished_by(loaded)
        _check_disabled(loaded, command.finished_by if command else [])


def _count_workers(loaded: Loaded, tpu: TpuSection) -> None:
    try:
        count = call_section(tpu.allocation_mode, tpu, TpuSection.count_workers)
        if count is not None and count < 1:
            problem = f"expected 1 or more, or None, got {count}"
            raise wrong_section_answer(tpu.allocation_mode, TpuSection.count_workers, problem)
        loaded.workers = count
    except TpuxError as error:
        key = "allocation_mode" if isinstance(error, PluginError) else "accelerator"
        loaded.error(("tpu", key), error.message, error.hint)


def _check_transport(loaded: Loaded, tpu: TpuSection) -> None:
    """Check that the transport is installed that the allocator declares."""
    try:
        if not tpu.transport or loaded.plugins.implements(tpu.transport, spec.connect):
            return
        message, hint = f"plugin {tpu.transport!r} does not implement connect", ""
    except TpuxError as error:
        message, hint = error.message, error.hint
    loaded.error(("tpu", "allocation_mode"), f"transport of allocator {tpu.allocation_mode!r}: {message}", hint)


def _check_workers(loaded: Loaded, command: CommandSection) -> None:
    """Check `command.workers` against the number of workers, if it is known."""
    if command.workers == "all":
        return
    chosen, count = command.workers if isinstance(command.workers, list) else [command.workers], loaded.workers
    if not chosen:
        loaded.error(("command", "workers"), "command.workers is empty", 'set it to "all" or to a list of numbers')
    for index, worker in enumerate(chosen):
        path = ("command", "workers", index) if isinstance(command.workers, list) else ("command", "workers")
        if worker in chosen[:index]:
            loaded.error(path, f"duplicate worker {worker}", "list it once")
        elif count is not None and worker >= count:
            workers = "1 worker" if count == 1 else f"{count} workers"
            loaded.error(path, f"no worker {worker}: the job has {workers}, numbered from 0")


def _check_required(loaded: Loaded, command: CommandSection) -> None:
    """Check that a detector can say what `command.require_finished` requires."""
    sections = loaded.sections
    if not command.require_finished or any(name not in sections for name in command.finished_by):
        return
    reasons = [loaded.ask(name, sections[name], Section.never_finished) for name in command.finished_by]
    if all(reasons):
        message = f"no attempt could succeed with require_finished: {'; '.join(filter(None, reasons))}"
        hint = "add a detector to command.finished_by that says it, or configure this one"
        loaded.error(("command", "require_finished"), message, hint)


def _check_finished_by(loaded: Loaded) -> None:
    """Warn about what has no effect because `command.finished_by` does not name its detector."""
    for name, section in loaded.sections.items():
        if name in CORE_SECTIONS or name in loaded.named_at:
            continue
        why, hint = f"command.finished_by does not name {name}", f"add {name} to command.finished_by, or remove the "
        if _prepares_command_if_trusted(name, loaded.plugins):
            loaded.warn((name,), f"section {name!r} does not affect the program: {why}", f"{hint}section")
            continue
        for key in loaded.ask(name, section, Section.needs_finished_by) or ():
            loaded.warn((name, key), f"{name}.{key} has no effect: {why}", f"{hint}key")


def _prepares_command_if_trusted(name: str, plugins: Plugins) -> bool:
    """Return whether a plugin prepares the command, and nothing but `command.finished_by` can select it."""
    return (
        plugins.implements(name, spec.prepare_command)
        and plugins.implements(name, spec.classify_failure)
        and not _implements(plugins, name, [*_MODULE, spec.provision, spec.connect, spec.on_preempt])
    )


def _check_disabled(loaded: Loaded, finished_by: Sequence[str]) -> None:
    """Warn about names in `plugins.disabled` that have no effect, or an effect that cannot be meant.

    And about names in `$TPUX_DISABLED_PLUGINS` that have none.
    """
    if (section := loaded.section("plugins", PluginsSection)) is None:
        return
    for index, name in enumerate(section.disabled):
        at, installed = ("plugins", "disabled", index), loaded.plugins.names()
        if name in finished_by:
            message = f"plugins.disabled names the detector {name!r}, which command.finished_by needs"
            loaded.warn(at, message, "remove it from one of them; its word does not count")
        elif name in loaded.named_at:
            message = f"plugin {name!r} is used although plugins.disabled names it: the config selects it"
            loaded.warn(at, message, "it is disabled as a detector, solver and listener only")
        elif name not in installed:
            loaded.warn(at, f"plugins.disabled names {name!r}, which is not installed", did_you_mean(name, installed))
    loaded.warnings += unknown_disabled_plugins()

"""The installed plugins: imported when they are first needed, and called one by one."""

from __future__ import annotations

import copy
import functools
import logging
import math
import threading
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import pluggy

from tpux import env
from tpux.errors import TpuxError
from tpux.model.job import Job
from tpux.plugin import answers, calls, limited, local_files, spec
from tpux.plugin.catalog import install_hint
from tpux.plugin.entrypoints import InstalledPlugin, find, may_implement
from tpux.plugin.guard import (
    AbandonedCallError,
    DisabledPluginError,
    Guard,
    PluginError,
    UnusablePluginError,
)
from tpux.plugin.hooks import HookManager, Implementations, is_wrapper, rank
from tpux.plugin.observer import Observer, observe
from tpux.plugin.selected import selected_plugins
from tpux.plugin.status import PluginStatus, command_rows, failed_status, plugin_status, with_requirements
from tpux.plugin.stdout import stdout_to_stderr

if TYPE_CHECKING:
    from tpux.model.events import Event

P = ParamSpec("P")
T = TypeVar("T")
# Without a handler Python prints a library's warnings, tracebacks among them, on the user's screen.
logging.getLogger("tpux").addHandler(logging.NullHandler())
log = logging.getLogger(__name__)


class Plugins:
    """All installed plugins. Each is imported when it is first needed, and a broken one affects no other.

    Threads may share it.

    Args:
        found: what is installed; by default it is searched for.

    Attributes:
        guard: for what hooks have returned and that runs later.
        observer: receives each call and each failure; None if there is none.
        files: the names of those that are files, without a dist.
        directory: where a job has these; None without a job.
        abandoned_call: returns the call of a plugin that did not return, because of which none of its code is called;
            "" if there is none.
    """

    def __init__(self, found: Mapping[str, InstalledPlugin] | None = None) -> None:
        self._found = dict(find("tpux") if found is None else found)
        self.guard = Guard(self._found)
        self.observer = Observer() if env.trace() else None
        self.files: tuple[str, ...] = ()
        self.directory: Path | None = None
        self.abandoned_call: Callable[[str], str] = lambda _: ""
        self._manager = HookManager()
        self._loaded: set[str] = set()
        self._may: dict[tuple[str, str], bool] = {}
        self._errors: dict[str, TpuxError] = {}
        self._registering = threading.Lock()
        self._importing: dict[str, threading.RLock] = {}  # one lock each: an import that blocks blocks no other

    def observed(self, observer: Observer) -> Plugins:
        """Return the same plugins, with an observer that receives their calls."""
        same = copy.copy(self)
        same.observer, same.guard = observer, Guard(self._found, observer)
        return same

    def conceal(self, secrets: Iterable[str]) -> None:
        """Let the observer show these values nowhere."""
        if self.observer:
            self.observer.secrets = {*self.observer.secrets, *secrets}

    def with_files(self, found: Mapping[str, InstalledPlugin], directory: Path | None = None) -> Plugins:
        """Return the same plugins and others, which are files: only who has this object sees them.

        Args:
            found: the files by name; they precede an installed plugin of that name.
            directory: that of a job, which has them.
        """
        if not found:
            return self
        same = Plugins({**self._found, **found})
        same.files, same.directory, same.observer = tuple(found), directory, self.observer
        same._may = self._may  # what the packages have is searched once
        same.guard, same.abandoned_call = Guard(same.installed, self.observer), self.abandoned_call
        for name, one in self._found.items():
            if not one.dist and name not in found:
                same.add(name, self.load(name))
        return same

    def with_own_files(self) -> Plugins:
        """Return the same plugins and the files in the user's directory, as a config would have them."""
        return self.with_files(local_files.found((), self._found, local_files.own_files()))

    def add(self, name: str, plugin: object) -> None:
        """Add a plugin that no dist declares, such as a test's; it replaces an installed one.

        Raises:
            TpuxError: it violates the contract.
        """
        with self._registering:
            self._errors.pop(name, None)
            self._manager.unregister(name=name)
            self._manager.register_plugin(name, plugin)
            self._found[name] = InstalledPlugin(name, "", "", repr(plugin))
            self._loaded.add(name)

    @property
    def installed(self) -> Mapping[str, InstalledPlugin]:
        """What is installed, by name."""
        return self._found

    def names(self, *, disabled: bool = False) -> list[str]:
        """Return the names of all installed plugins, broken ones included, and disabled ones only on request."""
        return sorted(name for name, found in self._found.items() if disabled or not found.disabled)

    def status(self, name: str) -> PluginStatus:
        """Return a plugin's status; imports it.

        Raises:
            TpuxError: no such plugin is installed.
        """
        found = self._found.get(name)
        if found is None:
            raise self._not_installed(name)
        try:
            self._load(name)
        except TpuxError as error:
            return failed_status(found, "plugin", error.__cause__ if isinstance(error.__cause__, TpuxError) else error)
        return plugin_status(found, self._hooks(name))

    def rows(self, core_commands: Iterable[str] = ()) -> list[PluginStatus]:
        """Return the status of every plugin and every command of plugins; imports them all, and asks for sections.

        Args:
            core_commands: the names of core's own commands, which take precedence over those of plugins.
        """
        return [*(self._row(name) for name in sorted(self._found)), *command_rows(core_commands)]

    def _row(self, name: str) -> PluginStatus:
        status = self.status(name)
        if status.status in {"broken", "disabled"}:
            return status
        try:
            for hook in (spec.config_section, spec.tpu_section):
                self._call(name, hook, {}, [])
        except TpuxError as error:
            return replace(status, status="broken", error=error.message, hint=error.hint)
        return status

    def load(self, name: str) -> object:
        """Return a plugin's module or object; imports it.

        Raises:
            TpuxError: it is not installed, disabled or broken, with what to do about it.
        """
        self._load(name)
        return cast("Implementations", self._manager.get_plugin(name)).plugin

    def implements(self, name: str, hook: Callable[P, T]) -> bool:
        """Return whether a plugin implements a hook; raises as `load` does."""
        self._load(name)
        return hook.__name__ in self._hooks(name)

    def implementing(self, hook: Callable[P, T]) -> list[str]:
        """Return the plugins that implement a hook; imports only those that may. Broken ones are left out."""
        names = [name for name in self.names() if self._may_implement(name, hook)]
        return [name for name in names if self.can_load(name, in_time=True) and hook.__name__ in self._hooks(name)]

    def _may_implement(self, name: str, hook: Callable[..., object]) -> bool:
        """Return whether a plugin is imported, or has the hook's name in its files; those of packages are read once."""
        key = (name, hook.__name__)
        if name in self._loaded:
            return True
        if isinstance(found := self._found[name], local_files.LocalPlugin):
            return may_implement(found, hook.__name__)
        if key not in self._may:
            self._may[key] = may_implement(found, hook.__name__)
        return self._may[key]

    def broken(self, *hooks: Callable[..., object], without: Collection[str] = ()) -> dict[str, TpuxError]:
        """Return why each plugin cannot be used that may implement one of these hooks; imports all that may.

        Args:
            hooks: the hooks' specifications.
            without: the plugins that are left out.
        """
        errors = {}
        for name, found in self._found.items():
            if name in self._loaded or found.disabled or name in without:
                continue
            if found.broken or any(self._may_implement(name, hook) for hook in hooks):
                try:
                    self._load_in_time(name)
                except TpuxError as error:
                    errors[name] = error
        return errors

    def _load_in_time(self, name: str) -> None:
        """Import a plugin that no job may have selected.

        Raises:
            TpuxError: as `_load`, or it does not return from its import.
        """
        try:
            if name in self._loaded or name in self.files:  # a file's import has a limit of its own
                self._load(name, tries=limited.MAX_LATE)
            else:
                self.guard.limited(name, calls.IMPORT, lambda: self._load(name))
        except PluginError as error:
            raise UnusablePluginError(error.message, hint=error.hint) from error

    def listeners(self, among: Iterable[str] | None = None) -> list[str]:
        """Return the plugins that may implement `on_event`, all or among these; imports none of them."""
        hook, names = spec.on_event.__name__, [*(self.names() if among is None else among)]
        loaded = [name for name in names if name in self._loaded]
        others = [name for name in names if name not in self._loaded and not self._found[name].broken]
        return sorted(
            [name for name in loaded if any(one.startswith(hook) for one in self._hooks(name))]
            + [name for name in others if may_implement(self._found[name], hook)]
        )

    def notify(self, name: str, job: Job, event: Event) -> None:
        """Call `on_event` of one plugin, within the wrappers of all plugins that are imported.

        Plugins that the job disables are left out.

        Raises:
            PluginError: the plugin, or a wrapper, failed.
            TpuxError: the plugin raised it, or cannot be loaded.
        """
        self._load(name)
        if name not in job.disabled_plugins:
            self._call(name, spec.on_event, {"job": job, "event": event}, sorted(self._loaded - job.disabled_plugins))

    def call_one(self, name: str, hook: Callable[P, T | None], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call a hook of one plugin.

        If the hook has an argument `job`, the wrappers of the plugins that this job selects apply. For a hook
        that is a generator, a wrapper sees the generator.

        Args:
            name: the plugin.
            hook: the hook's specification: `call_one("docker", spec.check, job=job, config=None, worker=worker)`.
            args: not allowed, hooks take keyword arguments.
            kwargs: all arguments of the hook.

        Returns:
            The answer, None if the plugin does not implement the hook. A generator's steps are guarded and
            validated as they are yielded.

        Raises:
            PluginError: the plugin, or a wrapper, failed or returned what the hook does not allow.
            TpuxError: the plugin raised it, or cannot be loaded.
        """
        if args:
            raise TypeError(f"the hook {hook.__name__} takes keyword arguments only")
        self._load(name)
        job = kwargs.get("job")
        wrappers = [one for one in selected_plugins(job) if self.can_load(one)] if isinstance(job, Job) else []
        return cast("T | None", self._call(name, hook, kwargs, wrappers))

    def call_each(
        self, of: Job, hook: Callable[P, T | None], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[str, T | TpuxError]]:
        """Call a hook of every plugin that implements it, except those that a job disables; a broken one may.

        The wrappers of all these plugins apply to each answer.

        Args:
            of: the job.
            hook: the hook's specification.
            args: not allowed, hooks take keyword arguments.
            kwargs: all arguments of the hook; in place of `config` each plugin gets its own section.

        Returns:
            Each answer that is not None, or the error in its place, with the plugin's name: those first that are
            broken, then `tryfirst` ones, then by name.

        Raises:
            TypeError: the hook takes keyword arguments only.
        """
        if args:
            raise TypeError(f"the hook {hook.__name__} takes keyword arguments only")
        broken = self.broken(hook, without=of.disabled_plugins)
        names = [name for name in self.names() if name not in {*of.disabled_plugins, *broken}]
        loaded = [name for name in names if self._may_implement(name, hook) and self.can_load(name, in_time=True)]
        plain = [one for one in self._manager.implementations(hook.__name__) if not is_wrapper(one)]
        order = {one.plugin_name: (-rank(one), one.plugin_name) for one in plain if one.plugin_name in loaded}
        result: list[tuple[str, T | TpuxError]] = [*broken.items()]
        for name in sorted(order, key=order.__getitem__):
            own = {"config": of.sections.get(name)} if "config" in kwargs else {}
            try:
                answer = self._call(name, hook, {**kwargs, **own}, loaded)
            except TpuxError as error:
                answer = error
            if answer is not None:
                result.append((name, cast("T | TpuxError", answer)))
        return result

    def _call(
        self, name: str, hook: Callable[..., object], arguments: Mapping[str, object], wrappers: list[str]
    ) -> object:
        """Call a hook of one plugin, within the wrappers of others, as pluggy does.

        Args:
            name: the plugin.
            hook: the hook's specification.
            arguments: of the hook.
            wrappers: the plugins whose wrappers apply, the outermost first.
        """
        everyone = self._manager.implementations(hook.__name__)
        own = [one for one in everyone if one.plugin_name == name and not is_wrapper(one)]
        around = sorted(
            (one for one in everyone if one.plugin_name in wrappers and is_wrapper(one)),
            key=lambda one: (rank(one), -wrappers.index(one.plugin_name)),
        )
        if not own:
            return None
        call = functools.partial(self._answer, name, hook, arguments, [*own, *around])
        return observe(self.observer, name, hook.__name__, arguments, call) if self.observer else call()

    def _answer(
        self, name: str, hook: Callable[..., object], arguments: Mapping[str, object], involved: list[pluggy.HookImpl]
    ) -> object:
        def call() -> object:
            with self.guard.running(name, hook, involved, expected=(pluggy.HookCallError,)), stdout_to_stderr():
                answer = self._manager.call(hook.__name__, involved, arguments)
                self.guard.validate(hook, name, answers.problem_of(hook, answer))  # an answer's attributes may raise
                return answer

        answer = self.guard.limited(name, hook.__name__, call)
        return self.guard.steps(name, hook, answer, involved) if isinstance(answer, Generator) else answer

    def _load(self, name: str, *, tries: float = math.inf) -> None:
        """Import and register a plugin, once.

        Args:
            name: the plugin.
            tries: after how many failed imports a file is not tried again whose error may pass.

        Raises:
            TpuxError: it is not installed, disabled or broken.
        """
        if call := self.abandoned_call(name):
            raise AbandonedCallError(call)
        if name in self._loaded:
            return
        found = self._found.get(name)
        if found is None:
            raise self._not_installed(name)
        if found.disabled:
            raise DisabledPluginError(found)
        importing = calls.running(self.guard.describe(name), calls.IMPORT, name)
        with importing, self._importing.setdefault(name, threading.RLock()):
            broken = self._errors.get(name)
            if broken and isinstance(found, local_files.LocalPlugin) and found.may_pass(broken):
                broken = broken if self.guard.late[name, calls.IMPORT] >= tries else None
            if not broken and name not in self._loaded:
                broken = self._import(found)
        if broken:
            hint = broken.hint or f"it comes from {found.dist} {found.version}; see tpux plugins list"
            error = UnusablePluginError(f"the plugin {name} is broken: {broken.message}", hint=hint)
            error.remedy = hint if found.path else error.remedy
            raise error from broken

    def _import(self, found: InstalledPlugin) -> TpuxError | None:
        """Import and register a plugin; return why it cannot be used, which is kept."""
        try:
            plugin = found.load()
            with self._registering:
                self._manager.register_plugin(found.name, plugin, found.refused)
                if isinstance(found, local_files.LocalPlugin):
                    weakref.finalize(self._manager, found.forget)
            self._loaded.add(found.name)
            self._errors.pop(found.name, None)
        except TpuxError as error:
            broken = self._errors[found.name] = with_requirements(found, error)
            if isinstance(found, local_files.LocalPlugin):
                found.forget()
                self.guard.late[found.name, calls.IMPORT] += 1
            return broken
        return None

    def can_load(self, name: str, *, in_time: bool = False) -> bool:
        """Return whether a plugin is installed, and neither disabled nor broken; imports it.

        Args:
            name: the plugin.
            in_time: its import is not waited for without end: no job may have selected the plugin.
        """
        try:
            (self._load_in_time if in_time else self._load)(name)
        except TpuxError:
            return False  # `tpux plugins list` reports it, and any call that is addressed to it
        return True

    def _hooks(self, name: str) -> list[str]:
        return sorted(
            {
                f"{hook} (wrapper)" if is_wrapper(one) else hook
                for hook in vars(self._manager.hook)
                for one in self._manager.implementations(hook)
                if one.plugin_name == name
            }
        )

    def _not_installed(self, name: str) -> UnusablePluginError:
        return UnusablePluginError(f"no plugin {name!r} is installed", hint=install_hint(name, self.names()))

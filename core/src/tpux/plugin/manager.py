"""The installed plugins: imported when they are first needed, called one by one, each call guarded and validated."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, ParamSpec, TypeVar, cast

import pluggy

from tpux import env
from tpux.errors import TpuxError
from tpux.plugin import answers, spec
from tpux.plugin.entrypoints import InstalledPlugin, find, load_command, reason, stdout_to_stderr, unmet_requirements
from tpux.plugin.job import Job, selected_plugins
from tpux.plugin.known import did_you_mean, install_hint

P = ParamSpec("P")
T = TypeVar("T")
# Without a handler Python prints a library's warnings, tracebacks among them, on the user's screen.
logging.getLogger("tpux").addHandler(logging.NullHandler())
log = logging.getLogger(__name__)


class PluginError(TpuxError):
    """A plugin raised an exception that is not a TpuxError, or returned what its hook does not allow.

    Attributes:
        plugin: the plugin at fault; of an exception out of a wrapper, the wrapper's.
        hook: the hook that was called.
    """

    def __init__(self, message: str, *, plugin: str, hook: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.plugin = plugin
        self.hook = hook


@dataclass(frozen=True)
class PluginStatus:
    """An entry point as `tpux plugins list` shows it.

    Attributes:
        kind: the entry point's group: `tpux` (plugin) or `tpux.commands` (command).
        hooks: the hooks that a plugin implements; `check (wrapper)` if it wraps other plugins'.
        status: a plugin with a `warning` works, and something about it should be changed.
        error: what is wrong.
        hint: what to do about that.
    """

    name: str
    kind: Literal["plugin", "command"]
    dist: str
    version: str
    hooks: list[str] = field(default_factory=list)
    status: Literal["ok", "warning", "broken", "disabled"] = "ok"
    error: str = ""
    hint: str = ""


class Implementations:
    """The hook implementations of one plugin, as attributes.

    This is what is registered with pluggy: the same module may be behind two names, and a plugin may be an
    object that cannot be hashed; pluggy allows neither.
    """

    def __init__(self, plugin: object) -> None:
        self.plugin = plugin


class HookManager(pluggy.PluginManager):
    """The one pluggy manager of all plugins."""

    def __init__(self) -> None:
        super().__init__(spec.PROJECT)
        self.add_hookspecs(spec)
        self._specified = frozenset(vars(self.hook))

    def register_plugin(self, name: str, plugin: object) -> None:
        """Register a plugin completely, or not at all.

        Raises:
            TpuxError: the plugin violates the contract: an unknown hook, or an argument that its hook does not have.
        """
        try:
            implementations = self._implementations(plugin)
            self.register(implementations, name)
        except TpuxError:
            raise
        except pluggy.PluginValidationError as error:
            self.unregister(name=name)
            raise TpuxError(" ".join(str(error).split())) from error
        # Older versions of pluggy evaluate every attribute of a plugin, and a property may raise anything.
        except (Exception, SystemExit) as error:
            raise TpuxError(reason(error)) from error

    def _implementations(self, plugin: object) -> Implementations:
        if plugin is None:
            raise TpuxError("its entry point names None", hint="it must name a module or an object with hooks")
        found = Implementations(plugin)
        count = 0
        for attribute in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, attribute)
            if options is None:
                continue
            count += 1
            hook = options.get("specname") or attribute
            if hook in self._specified:
                setattr(found, attribute, getattr(plugin, attribute))
            elif not options.get("optionalhook"):
                hint = did_you_mean(hook, self._specified) or f"the hooks are {', '.join(sorted(self._specified))}"
                raise TpuxError(f"there is no hook {hook!r}: {hint}")
        if not count:
            raise TpuxError("it implements no hook", hint="mark its functions with @tpux.hookimpl")
        return found

    def implementations(self, hook: str) -> list[pluggy.HookImpl]:
        """Return all implementations of a hook, wrappers included."""
        caller: pluggy.HookCaller = getattr(self.hook, hook)
        return caller.get_hookimpls()

    def call(self, hook: str, implementations: list[pluggy.HookImpl], arguments: Mapping[str, object]) -> object:
        """Call some of a hook's implementations, as pluggy does; wrappers come last.

        `subset_hook_caller` can leave out plugins, but not a plugin's answer while it keeps its wrappers.
        """
        return self._hookexec(hook, implementations, arguments, True)


class Plugins:
    """All installed plugins. Each is imported when it is first needed, and a broken one affects no other.

    Threads may share it.

    Args:
        found: what is installed; by default it is searched for.
    """

    def __init__(self, found: Mapping[str, InstalledPlugin] | None = None) -> None:
        self._found = dict(find("tpux") if found is None else found)
        self._manager = HookManager()
        self._loaded: set[str] = set()
        self._errors: dict[str, TpuxError] = {}
        self._registering = threading.Lock()
        self._importing: dict[str, threading.RLock] = {}  # one lock each: an import that blocks blocks no other

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

    def names(self) -> list[str]:
        """Return the names of all installed plugins that are not disabled, broken ones included."""
        return sorted(name for name, found in self._found.items() if not found.disabled)

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
            return _failed_status(found, "plugin", error.__cause__ if isinstance(error.__cause__, TpuxError) else error)
        return PluginStatus(name, "plugin", found.dist, found.version, self._hooks(name), *_unmet(found))

    def rows(self, core_commands: Iterable[str] = ()) -> list[PluginStatus]:
        """Return the status of every plugin and every command of plugins; imports them all.

        Args:
            core_commands: the names of core's own commands, which take precedence over those of plugins.
        """
        commands = [_command_status(found, set(core_commands)) for found in find("tpux.commands").values()]
        return [*(self.status(name) for name in sorted(self._found)), *commands]

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
        wrappers = [one for one in selected_plugins(job) if self._can_load(one)] if isinstance(job, Job) else []
        return cast("T | None", self._call(name, hook, kwargs, wrappers))

    def call_all(self, hook: Callable[P, T | None], *args: P.args, **kwargs: P.kwargs) -> list[tuple[str, T]]:
        """Call a hook of every plugin that implements it; one that fails is logged and left out.

        Returns:
            Each answer with the plugin's name, as `call_each` does.
        """
        result: list[tuple[str, T]] = []
        for name, answer in self.call_each(hook, *args, **kwargs):
            if isinstance(answer, TpuxError):
                log.warning("%s", answer)
            else:
                result.append((name, answer))
        return result

    def call_each(
        self, hook: Callable[P, T | None], *args: P.args, **kwargs: P.kwargs
    ) -> list[tuple[str, T | TpuxError]]:
        """Call a hook of every plugin that implements it.

        The wrappers of all plugins apply to each answer. One that fails is logged, and the answer kept as it was.

        Returns:
            Each answer that is not None, or the error in its place, with the plugin's name: `tryfirst` ones first,
            then by name.
        """
        if args:
            raise TypeError(f"the hook {hook.__name__} takes keyword arguments only")
        loaded = [name for name in self.names() if self._can_load(name)]
        plain = [one for one in self._manager.implementations(hook.__name__) if not _is_wrapper(one)]
        order = {one.plugin_name: (-_rank(one), one.plugin_name) for one in plain if one.plugin_name in loaded}
        result: list[tuple[str, T | TpuxError]] = []
        for name in sorted(order, key=order.__getitem__):
            try:
                answer = self._call(name, hook, kwargs, loaded, tolerant=True)
            except TpuxError as error:
                answer = error
            if answer is not None:
                result.append((name, cast("T | TpuxError", answer)))
        return result

    @contextmanager
    def guarded(self, name: str, hook: Callable[..., object]) -> Iterator[None]:
        """Turn what an object that a hook has returned raises into a `PluginError`, except OSErrors.

        Args:
            name: the plugin.
            hook: the hook that returned the object.
        """
        try:
            yield
        except (TpuxError, OSError):
            raise
        except (Exception, SystemExit) as error:
            raise self._failed(name, hook.__name__, error, called=name) from error

    def wrong_answer(self, name: str, hook: Callable[..., object], problem: str) -> PluginError:
        """Return the error for an answer in which core found a problem that its type does not show."""
        return self._error(f"gave a wrong answer from {hook.__name__}: {problem}", name, hook.__name__)

    def _call(
        self,
        name: str,
        hook: Callable[..., object],
        arguments: Mapping[str, object],
        wrappers: list[str],
        *,
        tolerant: bool = False,
    ) -> object:
        """Call a hook of one plugin, within the wrappers of others.

        Args:
            name: the plugin.
            hook: the hook's specification.
            arguments: of the hook.
            wrappers: the plugins whose wrappers apply, the outermost first.
            tolerant: if a wrapper fails after the plugin has answered, return that answer.
        """
        everyone = self._manager.implementations(hook.__name__)
        own = [one for one in everyone if one.plugin_name == name and not _is_wrapper(one)]
        around = sorted(
            (one for one in everyone if one.plugin_name in wrappers and _is_wrapper(one)),
            key=lambda one: (_rank(one), -wrappers.index(one.plugin_name)),
        )
        if not own:
            return None
        unwrapped: list[object] = []

        def validate() -> Generator[None, object, object]:
            answer = yield
            self._validate(hook, name, answers.problem_of(hook, answer))
            unwrapped.append(answer)
            return answer

        innermost = pluggy.HookImpl(self, name, validate, _WRAPPER)
        try:
            answer = self._call_guarded(name, hook, [*own, innermost, *around], arguments)
            if around:
                culprits = " or ".join(dict.fromkeys(one.plugin_name for one in around))
                self._validate(hook, culprits, answers.problem_of(hook, answer), called=name)
        except TpuxError as error:
            if not (tolerant and unwrapped):
                raise
            log.warning("%s", error)
            answer = unwrapped[0]
        return self._guarded(name, hook, answer, [*own, *around]) if isinstance(answer, Generator) else answer

    def _call_guarded(
        self,
        name: str,
        hook: Callable[..., object],
        implementations: list[pluggy.HookImpl],
        arguments: Mapping[str, object],
    ) -> object:
        try:
            with stdout_to_stderr():
                return self._manager.call(hook.__name__, implementations, arguments)
        except (TpuxError, pluggy.HookCallError):
            raise
        # The boundary to plugin code: any exception is reported as the plugin's.
        except (Exception, SystemExit) as error:
            raise self._failed(_raised_by(error, implementations) or name, hook.__name__, error, called=name) from error

    def _guarded(
        self,
        name: str,
        hook: Callable[..., object],
        steps: Generator[object, object, object],
        involved: list[pluggy.HookImpl],
    ) -> Generator[object, object, object]:
        """Pass a generator's steps on, each guarded and validated."""
        sent: object = None
        try:
            while True:
                try:
                    with stdout_to_stderr():
                        step = steps.send(sent)
                except StopIteration as end:
                    self._validate(hook, name, answers.problem_of_result(hook, end.value))
                    return end.value
                except TpuxError:
                    raise
                except (Exception, SystemExit) as error:
                    raise self._failed(
                        _raised_by(error, involved) or name, hook.__name__, error, called=name
                    ) from error
                self._validate(hook, name, answers.problem_of_step(hook, step))
                sent = yield step
        finally:
            steps.close()

    def _validate(self, hook: Callable[..., object], name: str, problem: str, *, called: str = "") -> None:
        if problem:
            what = hook.__name__ if called in ("", name) else f"its wrapper of {hook.__name__} of plugin {called}"
            raise self._error(f"gave a wrong answer from {what}: {problem}", name, hook.__name__)

    def _failed(self, name: str, hook: str, error: BaseException, *, called: str) -> PluginError:
        what = hook if called == name else f"its wrapper of {hook} of plugin {called}"
        log.error("plugin %s failed in %s", name, what, exc_info=error)
        return self._error(f"failed in {what}: {reason(error)}", name, hook)

    def _error(self, message: str, name: str, hook: str) -> PluginError:
        found = self._found.get(name)
        source = f"{found.dist} {found.version}" if found and found.dist else "the plugin"
        hint = f"a bug in the plugin, not in your config: report it to the authors of {source}"
        dist = f" ({source})" if found and found.dist else ""
        return PluginError(f"plugin {name}{dist} {message}", plugin=name, hook=hook, hint=hint)

    def _load(self, name: str) -> None:
        """Import and register a plugin, once.

        Raises:
            TpuxError: it is not installed, disabled or broken.
        """
        if name in self._loaded:
            return
        found = self._found.get(name)
        if found is None:
            raise self._not_installed(name)
        if found.disabled:
            raise TpuxError(f"the plugin {name} is disabled", hint=f"${env.DISABLED_PLUGINS} names it")
        with self._importing.setdefault(name, threading.RLock()):
            if name not in self._loaded and name not in self._errors:
                try:
                    plugin = found.load()
                    with self._registering:
                        self._manager.register_plugin(name, plugin)
                    self._loaded.add(name)
                except TpuxError as error:
                    self._errors[name] = error
        if broken := self._errors.get(name):
            hint = broken.hint or f"it comes from {found.dist} {found.version}; see tpux plugins list"
            raise TpuxError(f"the plugin {name} is broken: {broken.message}", hint=hint) from broken

    def _can_load(self, name: str) -> bool:
        try:
            self._load(name)
        except TpuxError:
            return False  # `tpux plugins list` reports it, and any call that is addressed to it
        return True

    def _hooks(self, name: str) -> list[str]:
        return sorted(
            {
                f"{hook} (wrapper)" if _is_wrapper(one) else hook
                for hook in vars(self._manager.hook)
                for one in self._manager.implementations(hook)
                if one.plugin_name == name
            }
        )

    def _not_installed(self, name: str) -> TpuxError:
        return TpuxError(f"no plugin {name!r} is installed", hint=install_hint(name, self.names()))


_WRAPPER = pluggy.HookimplOpts(
    wrapper=True, hookwrapper=False, optionalhook=False, tryfirst=False, trylast=False, specname=None
)


def _is_wrapper(implementation: pluggy.HookImpl) -> bool:
    return implementation.wrapper or implementation.hookwrapper


def _rank(implementation: pluggy.HookImpl) -> int:
    return implementation.tryfirst - implementation.trylast


def _raised_by(error: BaseException, involved: list[pluggy.HookImpl]) -> str:
    """Return the plugin whose implementation is the innermost in an exception's traceback, "" if none is."""
    owners = {one.function.__code__: one.plugin_name for one in involved}
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    for code in reversed(frames):
        if code in owners:
            return owners[code]
    # A wrapper that does not yield exactly once: pluggy raises it, and names the wrapper's file and line.
    places = {f"{code.co_filename}:{code.co_firstlineno} ": name for code, name in owners.items()}
    return next((name for place, name in places.items() if place in str(error)), "")


def _failed_status(found: InstalledPlugin, kind: Literal["plugin", "command"], error: TpuxError) -> PluginStatus:
    if found.disabled:
        hint = f"remove it from ${env.DISABLED_PLUGINS} to use it"
        return PluginStatus(found.name, kind, found.dist, found.version, [], "disabled", "it is never imported", hint)
    _, unmet, hint = _unmet(found)
    message = f"{error.message}; {unmet}" if unmet else error.message
    fix = hint or error.hint or f"reinstall or upgrade {found.dist}, or report it to its authors"
    return PluginStatus(found.name, kind, found.dist, found.version, [], "broken", message, fix)


def _command_status(found: InstalledPlugin, core_commands: set[str]) -> PluginStatus:
    if found.name in core_commands:
        error, hint = "core has a command of this name, which is run instead", f"rename the entry point in {found.dist}"
        return PluginStatus(found.name, "command", found.dist, found.version, [], "broken", error, hint)
    if not found.disabled:
        try:
            load_command(found)
        except TpuxError as error:
            return _failed_status(found, "command", error)
        return PluginStatus(found.name, "command", found.dist, found.version, [], *_unmet(found))
    return _failed_status(found, "command", TpuxError(""))


def _unmet(found: InstalledPlugin) -> tuple[Literal["ok", "warning"], str, str]:
    """Return the status, the error and the hint for a dist's unmet requirements."""
    unmet = unmet_requirements(found.dist) if found.dist else []
    if not unmet:
        return "ok", "", ""
    return "warning", f"it requires {', '.join(unmet)}", f"pip install --upgrade {found.dist}"

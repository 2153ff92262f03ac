"""Plugins in use: loaded on demand, asked one by one, guarded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Literal, ParamSpec, TypeVar, cast

import pluggy

from tpux import env
from tpux.errors import TpuxError
from tpux.plugin import spec
from tpux.plugin.entrypoints import InstalledPlugin, find, reason
from tpux.plugin.known import did_you_mean, install_hint

P = ParamSpec("P")
T = TypeVar("T")
# Without a handler Python prints a library's warnings, tracebacks among them, on the user's screen.
logging.getLogger("tpux").addHandler(logging.NullHandler())
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PluginStatus:
    """A plugin as `tpux plugins list` shows it; `error` says why it is not ok."""

    name: str
    dist: str
    version: str
    hooks: list[str]
    status: Literal["ok", "broken", "disabled"]
    error: str = ""


class Plugins:
    """All plugins that are installed. Each is imported when it is first needed, and may be broken alone.

    Each has a pluggy manager of its own: so a question goes to one plugin, in the order that core
    chooses, and one that fails to register leaves nothing behind. Threads may share it.

    Args:
        found: what is installed; looked for where it is not given.
    """

    def __init__(self, found: Mapping[str, InstalledPlugin] | None = None) -> None:
        self._found = dict(find("tpux") if found is None else found)
        self._managers: dict[str, pluggy.PluginManager | TpuxError] = {}
        self._lock = threading.RLock()

    def add(self, name: str, plugin: object) -> None:
        """Take a plugin that no dist brings, such as a test's; it takes the place of an installed one.

        Raises:
            TpuxError: it does not keep the contract.
        """
        manager = manager_of(name, plugin)
        with self._lock:
            self._found[name] = InstalledPlugin(name, "", "", repr(plugin))
            self._managers[name] = manager

    def names(self) -> list[str]:
        """Every name that is installed and not disabled, broken ones too."""
        return sorted(name for name, found in self._found.items() if not found.disabled)

    def status(self, name: str) -> PluginStatus:
        """How a plugin is; loads it.

        Raises:
            TpuxError: nothing of that name is installed.
        """
        found = self._found.get(name)
        if found is None:
            raise self._not_installed(name)
        if found.disabled:
            return PluginStatus(name, found.dist, found.version, [], "disabled", f"${env.DISABLED_PLUGINS} names it")
        manager = self._load(found)
        if isinstance(manager, TpuxError):
            return PluginStatus(name, found.dist, found.version, [], "broken", manager.message)
        return PluginStatus(name, found.dist, found.version, hooks_of(manager), "ok")

    def rows(self) -> list[PluginStatus]:
        """How each plugin is, the disabled ones too; loads all others."""
        return [self.status(name) for name in sorted(self._found)]

    def load(self, name: str) -> object:
        """The plugin itself.

        Raises:
            TpuxError: it is not installed, disabled or broken, with what to do about it.
        """
        return self._manager(name).get_plugin(name)

    def implements(self, name: str, hook: Callable[P, T]) -> bool:
        """Whether the plugin implements `hook`; raises as `load` does."""
        return hook.__name__ in hooks_of(self._manager(name))

    def call_one(self, name: str, hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Ask one plugin.

        Args:
            name: whom.
            hook: the hook's specification: `call_one("docker", spec.check, job=job, config=None, worker=worker)`.
            args: none; hooks take keywords only.
            kwargs: every argument of the hook.

        Returns:
            Its answer, None where it does not implement the hook. Of a generator each step is guarded too.

        Raises:
            TpuxError: the plugin raised it; or it failed otherwise, and the error names it and the hook; or
                it cannot be loaded.
        """
        if args:
            raise TypeError(f"the hook {hook.__name__} takes keywords only")
        manager = self._manager(name)
        try:
            answer = answer_of(manager, hook.__name__, kwargs)
        except TpuxError:
            raise
        # The boundary to other people's code: whatever they raise is theirs, and says so.
        except (Exception, SystemExit) as error:
            raise self._failed(name, hook.__name__, error) from error
        if isinstance(answer, Generator):
            answer = self._guarded(name, hook.__name__, answer)
        return cast("T | None", answer)

    def call_all(self, hook: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[tuple[str, T]]:
        """Ask every plugin that can be loaded and implements `hook`; one that fails is logged and left out.

        Returns:
            The name and the answer of each that answered, in the order of the names.
        """
        answers: list[tuple[str, T]] = []
        for name in self.names():
            if isinstance(self._load(self._found[name]), TpuxError):
                continue  # it says so in `tpux plugins list`, and where a config names it
            try:
                answer = self.call_one(name, hook, *args, **kwargs)
            except TpuxError as error:
                log.warning("%s", error)
                continue
            if answer is not None:
                answers.append((name, answer))
        return answers

    def _manager(self, name: str) -> pluggy.PluginManager:
        found = self._found.get(name)
        if found is None:
            raise self._not_installed(name)
        if found.disabled:
            raise TpuxError(f"the plugin {name} is disabled", hint=f"${env.DISABLED_PLUGINS} names it")
        manager = self._load(found)
        if isinstance(manager, TpuxError):
            hint = f"it comes from {found.dist} {found.version}; see tpux plugins list"
            raise TpuxError(f"the plugin {name} is broken: {manager.message}", hint=hint) from manager
        return manager

    def _load(self, found: InstalledPlugin) -> pluggy.PluginManager | TpuxError:
        with self._lock:
            if found.name not in self._managers:
                try:
                    self._managers[found.name] = manager_of(found.name, found.load())
                except TpuxError as error:
                    self._managers[found.name] = error
            return self._managers[found.name]

    def _not_installed(self, name: str) -> TpuxError:
        return TpuxError(f"no plugin {name!r} is installed", hint=install_hint(name, self.names()))

    def _failed(self, name: str, hook: str, error: BaseException) -> TpuxError:
        found = self._found[name]
        log.error("the plugin %s failed in its hook %s", name, hook, exc_info=error)
        hint = f"a mistake in the plugin, not in your config: tell the authors of {found.dist} {found.version}"
        return TpuxError(f"the plugin {name} failed in its hook {hook}: {reason(error)}", hint=hint.rstrip())

    def _guarded(
        self, name: str, hook: str, steps: Generator[object, object, object]
    ) -> Generator[object, object, object]:
        try:
            return (yield from steps)
        except TpuxError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failed(name, hook, error) from error


def manager_of(name: str, plugin: object) -> pluggy.PluginManager:
    """A manager with this one plugin in it.

    Raises:
        TpuxError: the plugin does not keep the contract: a misspelt hook, an argument that the hook has not.
    """
    manager = pluggy.PluginManager(spec.PROJECT)
    manager.add_hookspecs(spec)
    specified = set(vars(manager.hook))
    if plugin is None:
        raise TpuxError("its entry point names None")
    try:
        manager.register(plugin, name)
    except pluggy.PluginValidationError as error:
        raise TpuxError(" ".join(str(error).split())) from error
    # pluggy looks at every attribute of the plugin, and any of them may be a property that fails.
    except (Exception, SystemExit) as error:
        raise TpuxError(reason(error)) from error
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        misspelt = min(set(vars(manager.hook)) - specified)
        meant = did_you_mean(misspelt, specified) or f"the hooks are {', '.join(sorted(specified))}"
        raise TpuxError(f"there is no hook {misspelt!r}: {meant}") from error
    return manager


def hooks_of(manager: pluggy.PluginManager) -> list[str]:
    """The hooks that the manager's plugin implements."""
    return sorted(name for name, hook in vars(manager.hook).items() if hook.get_hookimpls())


def answer_of(manager: pluggy.PluginManager, hook: str, arguments: dict[str, object]) -> object:
    """What the manager's one plugin answers, None where it does not implement the hook."""
    caller: pluggy.HookCaller = getattr(manager.hook, hook)
    answer = caller(**arguments)
    if caller.spec is not None and not caller.spec.opts.get("firstresult"):
        return answer[0] if answer else None
    return answer

"""Registration of plugins with pluggy, and calls of some of a hook's implementations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping

import pluggy

from tpux.errors import TpuxError
from tpux.plugin import spec
from tpux.plugin.catalog import did_you_mean
from tpux.plugin.entrypoints import is_interrupt, reason


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

    def register_plugin(self, name: str, plugin: object, refused: Collection[str] = ()) -> None:
        """Register a plugin completely, or not at all.

        Args:
            name: its name.
            plugin: its module or object.
            refused: the hooks that it may not implement.

        Raises:
            TpuxError: the plugin violates the contract: an unknown hook, or an argument that its hook does not have.
        """
        try:
            implementations = self._implementations(plugin, refused)
            self.register(implementations, name)
        except TpuxError:
            raise
        except pluggy.PluginValidationError as error:
            self.unregister(name=name)
            raise TpuxError(" ".join(str(error).split())) from error
        # Older versions of pluggy evaluate every attribute of a plugin, and a property may raise anything.
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise TpuxError(reason(error)) from error

    def _implementations(self, plugin: object, refused: Collection[str]) -> Implementations:
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
            if hook in refused:
                hint = "make a dist of it: tpux plugins package FILE"
                raise TpuxError(f"it implements {hook}, which a file may not: an allocator or transport", hint=hint)
            if hook in self._specified:
                self._check_arguments(hook, getattr(plugin, attribute))
                setattr(found, attribute, getattr(plugin, attribute))
            elif not options.get("optionalhook"):
                hint = did_you_mean(hook, self._specified) or f"the hooks are {', '.join(sorted(self._specified))}"
                raise TpuxError(f"there is no hook {hook!r}: {hint}")
        if not count:
            raise TpuxError("it implements no hook", hint="mark its functions with @tpux.hookimpl")
        return found

    def _check_arguments(self, hook: str, function: Callable[..., object]) -> None:
        """Raise an error for an argument that the hook does not have; pluggy's message does not name those it has."""
        caller: pluggy.HookCaller = getattr(self.hook, hook)
        arguments = caller.spec.argnames if caller.spec else ()
        for argument, parameter in inspect.signature(function).parameters.items():
            if argument not in arguments and parameter.default is parameter.empty:
                hint = did_you_mean(argument, arguments) or f"its arguments are {', '.join(arguments) or 'none'}"
                raise TpuxError(f"the hook {hook} has no argument {argument!r}: {hint}")

    def implementations(self, hook: str) -> list[pluggy.HookImpl]:
        """Return all implementations of a hook, wrappers included."""
        caller: pluggy.HookCaller = getattr(self.hook, hook)
        return caller.get_hookimpls()

    def call(self, hook: str, implementations: list[pluggy.HookImpl], arguments: Mapping[str, object]) -> object:
        """Call some of a hook's implementations, as pluggy does; wrappers come last.

        `subset_hook_caller` can leave out plugins, but not a plugin's answer while it keeps its wrappers.
        """
        return self._hookexec(hook, implementations, arguments, True)


def is_wrapper(implementation: pluggy.HookImpl) -> bool:
    """Return whether it wraps other plugins' implementations."""
    return implementation.wrapper or implementation.hookwrapper


def rank(implementation: pluggy.HookImpl) -> int:
    """Return 1 for `tryfirst`, -1 for `trylast`."""
    return implementation.tryfirst - implementation.trylast

"""Whether a plugin keeps the contract, as pluggy sees it."""

from __future__ import annotations

import pluggy

from tpux import hookspecs
from tpux.errors import TpuxError
from tpux.plugins.find import reason
from tpux.plugins.known import did_you_mean


def manager_of(name: str, plugin: object) -> pluggy.PluginManager:
    """A manager with this one plugin in it.

    Raises:
        TpuxError: the plugin does not keep the contract: a misspelt hook, an argument that the hook has not.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
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

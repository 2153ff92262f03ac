"""`ContractError`, and what turns every error of a plugin under test into one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tpux.errors import TpuxError
from tpux.plugin.guard import PluginError

P = ParamSpec("P")
T = TypeVar("T")


class ContractError(AssertionError):
    """A plugin violates the contract of its kind.

    Args:
        plugin: the plugin's name.
        hook: the hook at fault.
        message: what happened, and what was expected.

    Example:
        with pytest.raises(ContractError, match="hook setup"):
            module_contract("apt", {"packages": ["htop"]})
    """

    def __init__(self, plugin: str, hook: str, message: str) -> None:
        where = f"plugin {plugin}, hook {hook}: " if hook else f"plugin {plugin}: "
        # The messages of core's own errors name the plugin already.
        super().__init__(message if message.startswith("plugin ") else where + message)
        self.plugin = plugin
        self.hook = hook


def contract(check: Callable[P, T]) -> Callable[P, T]:
    """Make a function whose first argument is a plugin's name raise a ContractError for each error of the plugin."""

    @wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # pytest shows the author's own line instead
        try:
            return check(*args, **kwargs)
        except PluginError as error:  # its hint is for users
            raise ContractError(error.plugin, error.hook, error.message) from error
        except TpuxError as error:
            raise ContractError(str(args[0]), "", str(error)) from error

    return checked


def require(condition: object, plugin: str, hook: Callable[..., object], message: str) -> None:
    """Raise a ContractError unless a condition holds.

    Args:
        condition: what must be true.
        plugin: the plugin's name.
        hook: the specification of the hook at fault.
        message: what happened, and what was expected.
    """
    __tracebackhide__ = True
    if not condition:
        raise ContractError(plugin, hook.__name__, message)

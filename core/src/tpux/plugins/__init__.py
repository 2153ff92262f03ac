"""Plugins: found by their entry points, blocked before import, loaded on demand, each one on its own.

`from tpux.plugins import Plugins`; importing this package imports nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.plugins.find import command_plugins as command_plugins
    from tpux.plugins.loaded import Plugins as Plugins
    from tpux.plugins.loaded import Row as Row

_MODULE_OF = {"command_plugins": "find", "Plugins": "loaded", "Row": "loaded"}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the table above is the one list)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux.plugins' has no attribute {name!r}")
    return getattr(import_module(f"tpux.plugins.{_MODULE_OF[name]}"), name)

"""Functions that plugins share, beside the contract in `tpux`: `from tpux.helpers import Backoff, apt`.

The modules `apt`, `copies` and `turns` have parts of scripts that run on workers. Names are imported when they are
first used (PEP 562), since each plugin needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.accelerators import workers_of as workers_of
    from tpux.backoff import Backoff as Backoff
    from tpux.config.table_file import read_data_file as read_data_file
    from tpux.durations import parse_duration as parse_duration
    from tpux.errors import plain_reason as plain_reason
    from tpux.helpers import apt as apt
    from tpux.helpers import copies as copies
    from tpux.helpers import turns as turns
    from tpux.model.host import CHUNK_SIZE as CHUNK_SIZE
    from tpux.model.program_output import find_line as find_line
    from tpux.plugin.connect import connect_through as connect_through
    from tpux.store.files import mounts_below as mounts_below
    from tpux.store.leases import acquire_lease as acquire_lease
    from tpux.store.leases import acquire_leases as acquire_leases
    from tpux.store.leases import release_lease as release_lease

_MODULES = {
    "accelerators": "workers_of",
    "backoff": "Backoff",
    "config.table_file": "read_data_file",
    "durations": "parse_duration",
    "errors": "plain_reason",
    "helpers.apt": "apt",
    "helpers.copies": "copies",
    "helpers.turns": "turns",
    "plugin.connect": "connect_through",
    "model.host": "CHUNK_SIZE",
    "model.program_output": "find_line",
    "store.files": "mounts_below",
    "store.leases": "acquire_lease acquire_leases release_lease",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the table above is the one list)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux.helpers' has no attribute {name!r}")
    module = import_module(f"tpux.{_MODULE_OF[name]}")
    return module if module.__name__.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return __all__

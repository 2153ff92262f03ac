"""Types for the keys of a plugin's section, and functions that read their values: `from tpux.fields import Duration`.

`workers_of` reads an `Accelerator`, `parse_duration` the text of a `Duration`, `find_line` searches for a `Pattern`,
and `read_data_file` reads a `LocalFile` as a model. `Bucket` is what a section's `buckets` returns, `Backoff` has the
delays between retries. Names are imported when they are first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.accelerators import workers_of as workers_of
    from tpux.backoff import Backoff as Backoff
    from tpux.config.table_file import read_data_file as read_data_file
    from tpux.durations import parse_duration as parse_duration
    from tpux.model.failures import FailureKind as FailureKind
    from tpux.model.program_output import find_line as find_line
    from tpux.model.sections import Bucket as Bucket
    from tpux.model.values import Accelerator as Accelerator
    from tpux.model.values import Duration as Duration
    from tpux.model.values import LocalFile as LocalFile
    from tpux.model.values import OutputFailureKind as OutputFailureKind
    from tpux.model.values import Pattern as Pattern
    from tpux.model.values import PythonVersion as PythonVersion
    from tpux.model.values import Size as Size

_MODULES = {
    "accelerators": "workers_of",
    "backoff": "Backoff",
    "config.table_file": "read_data_file",
    "durations": "parse_duration",
    "model.failures": "FailureKind",
    "model.program_output": "find_line",
    "model.sections": "Bucket",
    "model.values": "Accelerator Duration LocalFile OutputFailureKind Pattern PythonVersion Size",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (the table above is the one list)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux.fields' has no attribute {name!r}")
    return getattr(import_module(f"tpux.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__

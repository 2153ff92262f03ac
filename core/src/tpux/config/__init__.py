"""Configs: from YAML to validated sections, every error with its position.

Importing this package imports neither pydantic nor ruamel: `load`, `from_resolved` and `override_tpu` are imported when
they are first used (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tpux.config.interpolate import ATTEMPT_VARIABLES, JOB_VARIABLES, substitute
from tpux.config.script import insert_arguments
from tpux.config.secrets import names_in as secrets_in
from tpux.config.stored import Stored as Stored

if TYPE_CHECKING:
    from tpux.config.loader import load as load
    from tpux.config.models import override_tpu as override_tpu
    from tpux.config.resolved import Loaded as Loaded
    from tpux.config.resolved import Resolved as Resolved
    from tpux.config.resolved import from_resolved as from_resolved

__all__ = [
    "ATTEMPT_VARIABLES",
    "JOB_VARIABLES",
    "Stored",
    "from_resolved",
    "insert_arguments",
    "load",
    "override_tpu",
    "secrets_in",
    "substitute",
]
_MODULE_OF = {"from_resolved": "resolved", "load": "loader", "override_tpu": "models"}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tpux.config' has no attribute {name!r}")
    return getattr(import_module(f"tpux.config.{_MODULE_OF[name]}"), name)

"""Configs: YAML in, validated sections out, every mistake with its place.

Importing this package imports neither pydantic nor ruamel: its functions do when they are called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.config.interpolate import JOB_WORDS, LATE_WORDS, fill

if TYPE_CHECKING:
    from tpux.config.resolved import Loaded as Loaded
    from tpux.config.resolved import Resolved as Resolved
    from tpux.plugin.machines import JsonValue
    from tpux.plugin.manager import Plugins

__all__ = ["JOB_WORDS", "LATE_WORDS", "fill", "from_resolved", "load"]


def load(
    path: Path, overrides: Sequence[str] = (), *, plugins: Plugins, environ: Mapping[str, str] = os.environ
) -> Loaded:
    """Read a config.

    Args:
        path: its file.
        overrides: `section.key=value` arguments that take the place of what it says.
        plugins: who knows its sections.
        environ: where the values of `${env:NAME}` come from.

    Raises:
        ConfigError: all that is wrong with it, in the order of the file.
    """
    from tpux.config.loader import load as load_

    return load_(path, overrides, plugins=plugins, environ=environ)


def from_resolved(data: Mapping[str, JsonValue], *, plugins: Plugins, secrets: Mapping[str, str]) -> Resolved:
    """What `Loaded.resolved` wrote down, as sections again.

    Args:
        data: what it gave.
        plugins: who knows its sections.
        secrets: the values of `${env:NAME}`, by NAME. They are not in the section `command`, which reads
            them as `${TPUX_SECRET_NAME}`.

    Raises:
        TpuxError: a plugin that the job needs is gone, a secret is missing, or a section no longer fits.
    """
    from tpux.config.resolved import from_resolved as from_resolved_

    return from_resolved_(data, plugins=plugins, secrets=secrets)

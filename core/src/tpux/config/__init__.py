"""Configs: from YAML to validated sections, every error with its position.

Importing this package imports neither pydantic nor ruamel: its functions do when they are called.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.config.interpolate import ATTEMPT_VARIABLES, JOB_VARIABLES, substitute
from tpux.config.script import insert_arguments
from tpux.config.secrets import names_in as secrets_in
from tpux.config.stored import Stored as Stored

if TYPE_CHECKING:
    from tpux.config.resolved import Loaded as Loaded
    from tpux.config.resolved import Resolved as Resolved
    from tpux.model.json import JsonValue
    from tpux.model.sections import TpuSection
    from tpux.plugin.manager import Plugins

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


def load(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    plugins: Plugins,
    environ: Mapping[str, str] = os.environ,
    stored: Stored | None = None,
) -> Loaded:
    """Load and validate a config.

    Args:
        path: its file.
        overrides: `section.key=value` arguments, which override the file's values.
        plugins: the plugins that define its sections.
        environ: the variables that `${env:NAME}` refers to.
        stored: the file's content and those of the files that it names, as a job has them; None reads the files.

    Raises:
        ConfigError: it is invalid; has all errors, in the order of the file.
    """
    from tpux.config.loader import load as load_

    return load_(path, overrides, plugins=plugins, environ=environ, stored=stored)


def from_resolved(
    data: Mapping[str, JsonValue],
    *,
    plugins: Plugins,
    secrets: Mapping[str, str],
    required: Collection[str] | None = None,
    drop_invalid: bool = False,
) -> Resolved:
    """Return the sections of a config that was stored by `Loaded.resolved`.

    Args:
        data: the stored config.
        plugins: the plugins that define its sections.
        secrets: the values of `${env:NAME}`, by NAME. The section `command` does not contain them: it reads
            them as `${TPUX_SECRET_NAME}`.
        required: the sections that must be valid, others are left out; by default those that the job selects. Without
            `tpu`, the plugin of the allocator may be unusable; then that section has core's keys alone.
        drop_invalid: leave out keys that are no longer valid, and log that: enough to end the job. Not `tpu.release`.

    Raises:
        TpuxError: a plugin that the job needs is not installed, a secret is missing, or a section is no
            longer valid for its plugin.
    """
    from tpux.config.resolved import from_resolved as from_resolved_

    return from_resolved_(data, plugins=plugins, secrets=secrets, required=required, drop_invalid=drop_invalid)


def override_tpu(section: TpuSection, keys: Mapping[str, JsonValue]) -> TpuSection:
    """Return a section `tpu` with other values for some keys, for the same allocator.

    Args:
        section: the section.
        keys: the values.

    Raises:
        TpuxError: they are not valid.
    """
    from tpux.config.models import override_tpu as override_tpu_

    return override_tpu_(section, keys)

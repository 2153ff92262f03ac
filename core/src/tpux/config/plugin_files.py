"""The plugins of a config that are files: known before its sections are, since they define some."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from tpux.config.document import Node, node_at, to_json
from tpux.errors import Problem, TpuxError
from tpux.model.sections import PluginsSection
from tpux.plugin import local_files
from tpux.plugin.manager import Plugins

if TYPE_CHECKING:
    from tpux.config.resolved import Loaded
    from tpux.config.stored import Stored

FILES = ("plugins", "files")


def plugins_of(
    root: Node, context: Mapping[str, object], plugins: Plugins, stored: Stored | None
) -> tuple[Plugins, dict[Path, Path]]:
    """Return the plugins as a config sees them, and the files among them that its job gets, each with where it is read.

    Args:
        root: the config; what is wrong with the key is reported where its section is validated.
        context: for the validation of that section.
        plugins: the installed plugins.
        stored: the config as a job has it: the job's files, and not those that the user has now.
    """
    files = dict(stored.plugins) if stored else {}
    node = node_at(root, FILES)
    if node is not None and not stored:
        try:
            PluginsSection.model_validate({"files": to_json(node, str)}, context={**context, "files": files})
        except ValidationError:
            files = {}
    own = [] if stored else local_files.own_files()
    found = local_files.found(files.values(), {} if stored else plugins.installed, own)
    usable = {Path(one.version) for one in found.values() if not one.broken}
    return plugins.with_files(found), {**files, **{path: path for path in own if path in usable}}


def check(loaded: Loaded) -> None:
    """Import the files that a config names: unlike those of the user's directory, each has to be usable.

    A job's own copies, or what a sync takes in their place, are only required to be trusted.
    """
    section = loaded.section("plugins", PluginsSection)
    for source in loaded.plugin_files.values():
        found = loaded.plugins.installed[source.stem]
        if found.broken and source not in (section.files if section else ()):
            loaded.problems.append(Problem("", found.broken, found.hint))
    for index, path in enumerate(section.files if section else ()):
        at = (*FILES, index)
        if path not in loaded.plugin_files.values():
            loaded.error(at, f"{path} is not in the config itself", "write plugins.files there, without ${...}")
            continue
        try:
            loaded.plugins.load(path.stem)
        except TpuxError as error:
            loaded.error(at, error.message, error.hint)

"""From what was written down of a config back to its sections, as the supervisor needs them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from pydantic import ValidationError

from tpux.config.models import model_of
from tpux.config.render import restored
from tpux.config.validate import without_nulls
from tpux.errors import TpuxError
from tpux.plugins import Plugins
from tpux.sections import CORE_SECTIONS, Section

if TYPE_CHECKING:
    from tpux.machines import JsonValue

log = logging.getLogger(__name__)


class Resolved(NamedTuple):
    """What `tpux.Job` needs of a config."""

    sections: dict[str, Section]
    modules: tuple[str, ...]
    environment: str | None
    allocator: str


def from_resolved(data: Mapping[str, JsonValue], *, plugins: Plugins, secrets: Mapping[str, str]) -> Resolved:
    """The sections of what `Loaded.resolved` gave; `tpux.config.from_resolved` has the words."""
    config = cast("dict[str, JsonValue]", data["config"])
    modules = tuple(cast("list[str]", data["modules"]))
    environment = cast("str | None", data["environment"])
    allocator = cast("str", data["allocator"])
    copies = cast("dict[str, str]", data["files"])
    context = {
        "directory": Path(cast("str", data["directory"])),
        "check_files": False,
        "copies": {Path(path): Path(copy) for path, copy in copies.items()},
    }
    needed = {*CORE_SECTIONS, *modules, allocator}
    sections: dict[str, Section] = {}
    for word in dict.fromkeys([*CORE_SECTIONS, *config, *modules, allocator]):
        read = _section if word in needed else _section_if_it_fits
        if section := read(word, config.get(word), plugins, secrets, context):
            sections[word] = section
    return Resolved(sections, modules, environment, allocator)


def _section_if_it_fits(
    word: str, data: JsonValue, plugins: Plugins, secrets: Mapping[str, str], context: Mapping[str, object]
) -> Section | None:
    """A section that the job can do without: its plugin may be gone since."""
    try:
        return _section(word, data, plugins, secrets, context)
    except TpuxError as error:
        log.warning("the section %s is left out: %s", word, error)
        return None


def _section(
    word: str, data: JsonValue, plugins: Plugins, secrets: Mapping[str, str], context: Mapping[str, object]
) -> Section | None:
    model = model_of(word, plugins)
    if model is None:
        return None
    filled = data if word == "command" else restored(data, secrets)  # a command reads its secrets as variables
    try:
        return model.model_validate(without_nulls(model, filled), context=dict(context))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        message = f"the section {word} of this job no longer fits its plugin: {'; '.join(faults)}"
        raise TpuxError(message, hint="tpux or the plugin was changed since: create the job again") from error

"""Where the model of each section comes from, and what its keys accept."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel, ConfigDict

from tpux.errors import TpuxError
from tpux.model.sections import CORE_SECTIONS, Section, TpuSection, names_of
from tpux.plugin import spec
from tpux.plugin.catalog import DIST_OF
from tpux.plugin.manager import Plugins

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

DEFAULT_ALLOCATOR: str = TpuSection.model_fields["allocation_mode"].default
log = logging.getLogger(__name__)


def drop_unset(model: type[BaseModel], data: JsonValue) -> JsonValue:
    """Return the data without the keys whose null means "not set"."""
    if not isinstance(data, dict):
        return {} if data is None else data
    return {name: value for name, value in data.items() if value is not None or _accepts_null(model, name)}


def _accepts_null(model: type[BaseModel], key: str) -> bool:
    for name, field in model.model_fields.items():
        if key in names_of(name, field):
            return field.is_required() or type(None) in get_args(field.annotation)
    return True  # an unknown key remains, and is an error


def model_of(name: str, plugins: Plugins) -> type[Section] | None:
    """Return the model of a section other than `tpu`, None if the plugin of that name has no section.

    Raises:
        TpuxError: the plugin is not installed or cannot be loaded, or its answer is not a model.
    """
    if name in CORE_SECTIONS:
        return CORE_SECTIONS[name]
    return plugins.call_one(name, spec.config_section)


def tpu_model(allocator: str, plugins: Plugins) -> type[TpuSection]:
    """Return the model of the section `tpu` for an allocator: the allocator's own, or core's.

    Raises:
        TpuxError: the plugin is not installed or cannot be loaded, or its answer is not a model.
    """
    return plugins.call_one(allocator, spec.tpu_section) or TpuSection


def allocator_models(plugins: Plugins) -> dict[str, type[TpuSection]]:
    """Return the model of the section `tpu` for each installed allocator, without broken plugins."""
    models = {}
    for name in plugins.names():
        try:
            if plugins.implements(name, spec.provision):
                models[name] = tpu_model(name, plugins)
        except TpuxError as error:
            log.debug("allocator %s is left out: %s", name, error)
    return models


class OtherTpuSection(TpuSection):
    """The section `tpu` for an allocator that is not installed: only core's keys are validated."""

    model_config = ConfigDict(extra="ignore")


def section_names(plugins: Plugins) -> set[str]:
    """Return every name that may be a section: core's, the installed plugins', and those of tpux's own plugins."""
    return {*CORE_SECTIONS, *plugins.names(disabled=True), *DIST_OF}

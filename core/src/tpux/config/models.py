"""Where the model of each section comes from, and what its keys accept."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from tpux.errors import TpuxError
from tpux.model.sections import CORE_SECTIONS, Section, TpuSection, keys_of, names_of
from tpux.plugin import spec
from tpux.plugin.catalog import DIST_OF, did_you_mean
from tpux.plugin.manager import Plugins
from tpux.plugin.synonyms import key_hint

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


def override_tpu(section: TpuSection, keys: Mapping[str, JsonValue]) -> TpuSection:
    """Return a section `tpu` with other values for some keys, for the same allocator.

    Args:
        section: the section.
        keys: the values.

    Raises:
        TpuxError: they are not valid.
    """
    names = {key: name for name, field in type(section).model_fields.items() for key in names_of(name, field)}
    given = {name: getattr(section, name) for name in section.model_fields_set}
    others: dict[str, object] = {names.get(key, key): value for key, value in keys.items()}
    if others.get("allocation_mode", section.allocation_mode) != section.allocation_mode:
        raise TpuxError("tpu.allocation_mode: it cannot change")
    try:
        return type(section).model_validate({**given, **others}, context={"check_files": False})
    except ValidationError as error:
        details = "; ".join(f"tpu.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise TpuxError(details) from error


class OtherTpuSection(TpuSection):
    """The section `tpu` for an allocator that is not installed: only core's keys are validated."""

    model_config = ConfigDict(extra="ignore")


def section_names(plugins: Plugins) -> set[str]:
    """Return every name that may be a section: core's, the installed plugins', and those of tpux's own plugins."""
    return {*CORE_SECTIONS, *plugins.names(disabled=True), *DIST_OF}


def keys_by_section(plugins: Plugins) -> dict[str, list[str]]:
    """Return the keys of each section, those of `tpu` for all installed allocators; without broken plugins."""
    models: dict[str, list[type[BaseModel]]] = {name: [model] for name, model in CORE_SECTIONS.items()}
    models["tpu"] += allocator_models(plugins).values()
    for name in plugins.names():
        with suppress(TpuxError):
            models.setdefault(name, []).extend(filter(None, [model_of(name, plugins)]))
    return {name: list(dict.fromkeys(key for one in found for key in keys_of(one))) for name, found in models.items()}


def unknown_section_hint(path: Sequence[str], plugins: Plugins) -> str:
    """Return where a key belongs whose section does not exist, or the likely correct spelling of the section."""
    names, keys = section_names(plugins), keys_by_section(plugins)
    known = key_hint(path, {}) or key_hint(path[:1], keys)
    hint = known or did_you_mean(path[0], names) or key_hint(path, keys)
    return hint or f"the sections are {', '.join(sorted(names))}"

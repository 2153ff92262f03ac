"""Validation of a section by its model, and where each section's model comes from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from tpux.config.document import Node, Span
from tpux.config.error_messages import SectionErrors
from tpux.errors import Problem, TpuxError
from tpux.model.sections import CORE_SECTIONS, Section, TpuSection, names_of
from tpux.plugin import spec
from tpux.plugin.catalog import DIST_OF
from tpux.plugin.entrypoints import is_interrupt, reason
from tpux.plugin.guard import call_section
from tpux.plugin.manager import Plugins

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

DEFAULT_ALLOCATOR: str = TpuSection.model_fields["allocation_mode"].default
log = logging.getLogger(__name__)
S = TypeVar("S", bound=Section)
T = TypeVar("T")


def validate(
    name: str,
    model: type[Section],
    data: JsonValue,
    node: Node | None,
    *,
    key: Span,
    context: Mapping[str, object],
    allocators_with: Callable[[str], Sequence[str]],
    problems: list[Problem],
) -> Section | None:
    """Return the section as its model; only its valid keys if others are invalid, None if that is not possible.

    The valid keys determine what else to validate, so that all errors are reported at once.

    Args:
        name: the section's name.
        model: its model.
        data: its content, `{}` if the config has none.
        node: the same with positions, None if the config has none.
        key: the span of the section's name, or of the value that selects its plugin.
        context: the validation context of `sections.local_file`.
        allocators_with: returns the allocators that have a key of `tpu`, for the message about an unknown one.
        problems: receives errors.
    """
    given = drop_unset(model, data)
    try:
        return model.model_validate(given, context=dict(context))
    except ValidationError as error:
        problems += SectionErrors(name, model, node, key, allocators_with).problems(error.errors(include_url=False))
        return _valid_part(model, given, error)
    # A plugin's own validator may raise what pydantic does not expect.
    except BaseException as error:
        if is_interrupt(error):
            raise
        log.debug("the model of section %s failed", name, exc_info=True)
        problems.append(Problem(key.location, f"plugin {name!r} failed to validate its section: {reason(error)}"))
    return None


def _valid_part(model: type[Section], given: JsonValue, error: ValidationError) -> Section | None:
    invalid = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
    if not invalid or not isinstance(given, dict):
        return None
    try:
        valid = {name: value for name, value in given.items() if name not in invalid}
        return model.model_validate(valid, context={"check_files": False})
    except ValidationError:  # a required key is missing
        return None


def ask(name: str, section: S, method: Callable[[S], T], location: str, problems: list[Problem]) -> T | None:
    """Return what a method of a section answers; None if the plugin's one fails, which is reported.

    Args:
        name: the section's name.
        section: the section.
        method: the method as core defines it, such as `Section.warnings`.
        location: where the config has the section.
        problems: receives the error.
    """
    plugin = section.allocation_mode if isinstance(section, TpuSection) else name
    try:
        return call_section(plugin, section, method)
    except TpuxError as error:
        problems.append(Problem(location, error.message, error.hint))
        return None


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


def wraps_transport(model: type[Section] | None) -> bool:
    """Return whether a transport's section may say that it connects through another transport."""
    return model is not None and model.connects_through is not Section.connects_through


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

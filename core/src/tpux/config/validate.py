"""A section against its model: pydantic's errors become problems with their places."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from tpux.config.document import Spot, Tree
from tpux.config.error_messages import Explainer
from tpux.errors import Problem, TpuxError
from tpux.plugin import spec
from tpux.plugin.entrypoints import reason
from tpux.plugin.known import DIST_OF
from tpux.plugin.manager import Plugins
from tpux.plugin.sections import CORE_SECTIONS, Section, TpuSection, names_of

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue

DEFAULT_ALLOCATOR: str = TpuSection.model_fields["allocation_mode"].default
log = logging.getLogger(__name__)


def validate(
    word: str,
    model: type[Section],
    data: JsonValue,
    tree: Tree | None,
    *,
    key: Spot,
    context: Mapping[str, object],
    problems: list[Problem],
) -> Section | None:
    """The section as its model; what of it is valid where not all is, None where nothing is.

    What is valid says what else to look at, so that all mistakes are found at once.

    Args:
        word: the section's name.
        model: what it must be.
        data: its content, `{}` where the config has none.
        tree: the same as it was written, None where the config has none.
        key: where the section's name stands, or what asks for it.
        context: what `sections.local_file` is told.
        problems: takes what is wrong.
    """
    given = without_nulls(model, data)
    try:
        return model.model_validate(given, context=dict(context))
    except ValidationError as error:
        problems += Explainer(word, model, tree, key).problems(error.errors(include_url=False))
        return _valid_part(model, given, error)
    # A plugin's own validator may raise what pydantic does not expect.
    except Exception as error:
        log.debug("the model of section %s failed", word, exc_info=True)
        problems.append(Problem(key.place, f"the plugin {word} failed to check its section: {reason(error)}"))
    return None


def _valid_part(model: type[Section], given: JsonValue, error: ValidationError) -> Section | None:
    wrong = {fault["loc"][0] for fault in error.errors() if fault["loc"]}
    if not wrong or not isinstance(given, dict):
        return None
    try:
        right = {name: value for name, value in given.items() if name not in wrong}
        return model.model_validate(right, context={"check_files": False})
    except ValidationError:  # a key is missing
        return None


def without_nulls(model: type[BaseModel], data: JsonValue) -> JsonValue:
    """The data without those nulls that mean that the key is not given."""
    if not isinstance(data, dict):
        return {} if data is None else data
    return {name: value for name, value in data.items() if value is not None or _takes_null(model, name)}


def _takes_null(model: type[BaseModel], key: str) -> bool:
    """Whether a null under `key` says something; otherwise it is as if the key were not there."""
    for name, field in model.model_fields.items():
        if key in names_of(name, field):
            return field.is_required() or type(None) in get_args(field.annotation)
    return True  # an unknown key stays, and is a mistake


def model_of(word: str, plugins: Plugins) -> type[Section] | None:
    """The model of the section `word`, None where its plugin takes none; `tpu` has `tpu_model`.

    Raises:
        TpuxError: there is no such plugin, it cannot be loaded, or what it gives is no model.
    """
    if word in CORE_SECTIONS:
        return CORE_SECTIONS[word]
    model = plugins.call_one(word, spec.config_section)
    if model is not None and not (isinstance(model, type) and issubclass(model, Section)):
        raise TpuxError(f"the plugin {word} gives {model!r} as the model of its section, and it is no tpux.Section")
    return model


def tpu_model(allocator: str, plugins: Plugins) -> type[TpuSection]:
    """Return the model of the section `tpu` under an allocator: the allocator's own, or core's.

    Raises:
        TpuxError: there is no such plugin, it cannot be loaded, or its answer is not a model.
    """
    model = plugins.call_one(allocator, spec.tpu_section)
    if model is not None and not (isinstance(model, type) and issubclass(model, TpuSection)):
        raise TpuxError(f"plugin {allocator!r} returned {model!r} from tpu_section: expected a subclass of TpuSection")
    return model or TpuSection


class OtherTpuSection(TpuSection):
    """The machines of an allocator that is not installed: only core's keys are checked."""

    model_config = ConfigDict(extra="ignore")


def section_words(plugins: Plugins) -> set[str]:
    """Every word that may be a section: core's, the installed plugins', and those of tpux' own plugins."""
    return {*CORE_SECTIONS, *plugins.names(), *DIST_OF}

"""The model of each section: core's own, and those that plugins give."""

from __future__ import annotations

from tpux import hookspecs
from tpux.errors import TpuxError
from tpux.plugins import Plugins
from tpux.plugins.known import DIST_OF
from tpux.sections import CORE_SECTIONS, Section


def model_of(word: str, plugins: Plugins) -> type[Section] | None:
    """The model of the section `word`, None where the plugin of that name takes none.

    Raises:
        TpuxError: there is no such plugin, it cannot be loaded, or what it gives is no model.
    """
    if word in CORE_SECTIONS:
        return CORE_SECTIONS[word]
    model = plugins.ask(word, hookspecs.config_section)
    if model is not None and not (isinstance(model, type) and issubclass(model, Section)):
        raise TpuxError(f"the plugin {word} gives {model!r} as the model of its section, and it is no tpux.Section")
    return model


def section_words(plugins: Plugins) -> set[str]:
    """Every word that may be a section: core's, the installed plugins', and those of tpux' own plugins."""
    return {*CORE_SECTIONS, *plugins.names(), *DIST_OF}

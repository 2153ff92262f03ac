"""What is installed: the entry points of tpux' two groups, read without importing what they name."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from typing import TYPE_CHECKING, Literal

from tpux import env
from tpux.errors import TpuxError

if TYPE_CHECKING:
    import typer

Group = Literal["tpux", "tpux.commands"]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InstalledPlugin:
    """An entry point, and the dist that it comes from.

    Attributes:
        name: the word that a config uses for the plugin.
        value: what to import, `module` or `module:object`.
        disabled: `$TPUX_DISABLED_PLUGINS` names it: it is never imported.
        broken: why it cannot be used, whatever it holds.
    """

    name: str
    dist: str
    version: str
    value: str
    disabled: bool = False
    broken: str = ""

    def load(self) -> object:
        """Import what it names.

        Raises:
            TpuxError: whatever went wrong, in one line. KeyboardInterrupt alone passes.
        """
        if self.broken:
            raise TpuxError(self.broken)
        try:
            return EntryPoint(self.name, self.value, "").load()
        # A plugin's import may raise anything, and sys.exit too: it must cost nothing but itself.
        except (Exception, SystemExit) as error:
            log.debug("plugin %s (%s) cannot be loaded", self.name, self.value, exc_info=True)
            raise TpuxError(reason(error)) from error


def find(group: Group) -> dict[str, InstalledPlugin]:
    """All that is installed in `group`, by name, in the order of the names; nothing is imported."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in _entries(group):
        by_name.setdefault(entry.name, []).append(entry)
    disabled = env.disabled_plugins()
    return {name: _found(name, by_name[name], disabled=name in disabled) for name in sorted(by_name)}


def command_plugins() -> dict[str, Callable[[], typer.Typer]]:
    """The commands that plugins add, each with the function that loads it; nothing is imported.

    The function raises TpuxError where the plugin is broken.
    """
    found = find("tpux.commands")
    return {name: functools.partial(_load_command, one) for name, one in found.items() if not one.disabled}


def reason(error: BaseException) -> str:
    """What went wrong inside a plugin, in one line."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"the module {error.name!r} is not installed"
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _load_command(found: InstalledPlugin) -> typer.Typer:
    import typer

    where = f"command {found.name} ({found.dist} {found.version})"
    try:
        app = found.load()
    except TpuxError as error:
        raise TpuxError(error.message, where=where, hint="see that its dist is installed whole") from error
    if not isinstance(app, typer.Typer):
        raise TpuxError(f"{found.value} is no typer.Typer but {type(app).__name__}", where=where)
    return app


def _found(name: str, entries: list[EntryPoint], *, disabled: bool) -> InstalledPlugin:
    dists = [_name_and_version(entry.dist) for entry in entries]
    broken = ""
    if len(entries) > 1:
        rivals = " and ".join(
            sorted(f"{dist} ({entry.value})" for (dist, _), entry in zip(dists, entries, strict=True))
        )
        broken = f"{rivals} both claim the word {name!r}: uninstall one of them"
    return InstalledPlugin(name, *dists[0], entries[0].value, disabled, broken)


def _entries(group: Group) -> Iterable[EntryPoint]:
    try:
        return list(entry_points(group=group))
    # One dist with an unreadable entry_points.txt makes the quick way fail for all of them.
    except Exception:
        log.debug("the entry points cannot be read in one go", exc_info=True)
        return _entries_one_by_one(group)


def _entries_one_by_one(group: Group) -> list[EntryPoint]:
    entries: dict[str, list[EntryPoint]] = {}  # as Python does: of two copies of a dist, the first on the path counts
    for dist in distributions():
        name, _ = _name_and_version(dist)
        try:
            if name not in entries:
                entries[name] = [entry for entry in dist.entry_points if entry.group == group]
        except Exception as error:  # noqa: BLE001  (whatever is wrong with it, the others must work)
            log.warning("the entry points of %s cannot be read: %s", name, reason(error))
    return [entry for of_one in entries.values() for entry in of_one]


def _name_and_version(dist: Distribution | None) -> tuple[str, str]:
    try:
        return (dist.name or "unknown", dist.version or "") if dist else ("unknown", "")
    except Exception:  # noqa: BLE001  (metadata that is not there or not readable raises differently in each Python)
        return "unknown", ""

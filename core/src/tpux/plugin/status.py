"""The status of what is installed, as `tpux plugins list` shows it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from tpux import env
from tpux.errors import TpuxError
from tpux.plugin import spec
from tpux.plugin.entrypoints import InstalledPlugin, find, load_command, may_implement, unmet_requirements


@dataclass(frozen=True)
class PluginStatus:
    """An entry point as `tpux plugins list` shows it.

    Attributes:
        kind: the entry point's group: `tpux` (plugin) or `tpux.commands` (command).
        hooks: the hooks that a plugin implements; `check (wrapper)` if it wraps other plugins'.
        status: a plugin with a `warning` works, and something about it should be changed.
        error: what is wrong.
        hint: what to do about that.
    """

    name: str
    kind: Literal["plugin", "command"]
    dist: str
    version: str
    hooks: list[str] = field(default_factory=list)
    status: Literal["ok", "warning", "broken", "disabled"] = "ok"
    error: str = ""
    hint: str = ""


KINDS = {
    "provision": "allocator",
    "connect": "transport",
    "run": "environment",
    "setup": "module",
    "on_preempt": "rule",
    "solve": "solver",
    "classify_failure": "detector",
    "on_event": "listener",
}
"""What a plugin is, by the first of these hooks that it implements."""


def kind_of(row: PluginStatus) -> str:
    """Return what kind of plugin it is, for people."""
    return next((kind for hook, kind in KINDS.items() if hook in row.hooks), row.kind)


def plugin_status(found: InstalledPlugin, hooks: list[str]) -> PluginStatus:
    """Return the status of a plugin that can be imported, with the hooks that it implements."""
    warning = _unnoticed(found, hooks) or _uncalled(hooks) or _unmet(found)
    return PluginStatus(found.name, "plugin", found.dist, found.version, hooks, *warning)


def failed_status(found: InstalledPlugin, kind: Literal["plugin", "command"], error: TpuxError) -> PluginStatus:
    """Return the status of a plugin or a command that is disabled or broken."""
    if found.disabled:
        hint = f"remove {found.disabled_by} from {env.DISABLED_PLUGINS} to use it"
        return PluginStatus(found.name, kind, found.dist, found.version, [], "disabled", "it is never imported", hint)
    error = with_requirements(found, error)
    fix = error.hint or f"reinstall or upgrade {found.dist}, or report it to its authors"
    return PluginStatus(found.name, kind, found.dist, found.version, [], "broken", error.message, fix)


def with_requirements(found: InstalledPlugin, error: TpuxError) -> TpuxError:
    """Return an error of a plugin or command that begins with its dist's unmet requirements, the likely cause."""
    _, unmet, hint = _unmet(found)
    is_named = not unmet or error.message.startswith(unmet)
    if is_named:
        return error
    named = TpuxError(f"{unmet}; {error.message}", hint=hint)
    named.__cause__ = error.__cause__  # `tpux plugins show` prints its traceback
    return named


def command_rows(core_commands: Iterable[str]) -> list[PluginStatus]:
    """Return the status of every command of plugins; imports them all.

    Args:
        core_commands: the names of core's own commands, which take precedence over those of plugins.
    """
    return [command_status(found, set(core_commands)) for found in find("tpux.commands").values()]


def command_status(found: InstalledPlugin, core_commands: Collection[str]) -> PluginStatus:
    """Return the status of a plugin's command; imports it.

    Args:
        found: the command.
        core_commands: the names of core's own commands, which take precedence; those of groups as `GROUP.NAME`.
    """
    if found.name in core_commands:
        error, hint = "core has a command of this name, which is run instead", f"rename the entry point in {found.dist}"
        return PluginStatus(found.name, "command", found.dist, found.version, [], "broken", error, hint)
    group, dot, _ = found.name.partition(".")
    if dot and not any(name.startswith(f"{group}.") for name in core_commands):
        error, hint = f"core has no group of commands {group!r}", f"rename the entry point in {found.dist}"
        return PluginStatus(found.name, "command", found.dist, found.version, [], "broken", error, hint)
    if not found.disabled:
        try:
            load_command(found)
        except TpuxError as error:
            return failed_status(found, "command", error)
        return PluginStatus(found.name, "command", found.dist, found.version, [], *_unmet(found))
    return failed_status(found, "command", TpuxError(""))


def _unnoticed(found: InstalledPlugin, hooks: list[str]) -> tuple[Literal["warning"], str, str] | None:
    """Return the status, the error and the hint for a listener that a supervisor cannot see without importing it."""
    if not any(hook.startswith("on_event") for hook in hooks) or not found.dist or may_implement(found, "on_event"):
        return None
    message = "its package does not contain the word on_event, so no supervisor calls it"
    return "warning", message, "write `on_event` in it"


def _uncalled(hooks: list[str]) -> tuple[Literal["warning"], str, str] | None:
    """Return the status, the error and the hint for wrappers of hooks that have no wrappers: those without a job."""
    names = [hook.removesuffix(" (wrapper)") for hook in hooks if hook.endswith(" (wrapper)")]
    if not (uncalled := [name for name in names if "job" not in inspect.signature(getattr(spec, name)).parameters]):
        return None
    message = f"its wrapper of {', '.join(uncalled)} is never called"
    return "warning", message, "only the hooks that have the argument job are wrapped"


def _unmet(found: InstalledPlugin) -> tuple[Literal["ok", "warning"], str, str]:
    """Return the status, the error and the hint for a dist's unmet requirements."""
    unmet = unmet_requirements(found.dist) if found.dist else []
    if not unmet:
        return "ok", "", ""
    return "warning", f"it requires {', '.join(unmet)}", f"pip install --upgrade {found.dist}"

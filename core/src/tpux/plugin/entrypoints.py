"""Installed plugins: the entry points of `tpux`, `tpux.commands` and `tpux.fixtures`, read without importing them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import operator
import re
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from tpux import env
from tpux.errors import Problem, TpuxError
from tpux.plugin.catalog import RESERVED, did_you_mean
from tpux.plugin.dists import EntryPoint, entry_points, normalized
from tpux.plugin.stdout import stdout_to_stderr
from tpux.threads import later

if TYPE_CHECKING:
    import typer

Group = Literal["tpux", "tpux.commands", "tpux.fixtures"]
log = logging.getLogger(__name__)
SLOW_IMPORT = 10.0
"""Real seconds after which a message names what is being imported."""


@dataclass(frozen=True)
class InstalledPlugin:
    """An entry point and the dist that declares it.

    Attributes:
        name: the entry point's name; for a plugin the word that a config uses, for a command what is typed, or
            `GROUP.NAME` for one in a group.
        value: what is imported, `module` or `module:object`.
        disabled_by: the name in `$TPUX_DISABLED_PLUGINS` because of which it is never imported; "" if there is none.
        broken: why it cannot be used, known without importing it; "" if nothing is.
        hint: what to do about that.
    """

    name: str
    dist: str
    version: str
    value: str
    disabled_by: str = ""
    broken: str = ""
    hint: str = ""
    refused: ClassVar[frozenset[str]] = frozenset()
    """The hooks that it may not implement."""

    @property
    def path(self) -> Path | None:
        """The file that is imported; None if a dist declares the plugin."""
        return None

    def line_of(self, error: BaseException) -> str:
        """Return `:LINE`, where in its file an exception comes from; "" if it has none, or it comes from elsewhere."""
        del error
        return ""

    @property
    def disabled(self) -> bool:
        """True if `$TPUX_DISABLED_PLUGINS` names it or its dist, so it is never imported."""
        return bool(self.disabled_by)

    @property
    def typed(self) -> str:
        """A command as it is typed: that of the entry point `plugins.check` is `plugins check`."""
        return self.name.replace(".", " ")

    def load(self) -> object:
        """Import and return the plugin's object.

        Raises:
            TpuxError: it cannot be imported, with the reason in one line.
            KeyboardInterrupt: the user interrupted the command.
        """
        if self.broken:
            raise TpuxError(self.broken, hint=self.hint)
        try:
            with stdout_to_stderr(), later(SLOW_IMPORT, self._say_that_it_is_slow):
                module, _, attribute = self.value.partition("[")[0].partition(":")
                imported = importlib.import_module(module.strip())
                return operator.attrgetter(attribute.strip())(imported) if attribute else imported
        # An import may raise anything, and call sys.exit: only this plugin becomes unusable.
        except BaseException as error:
            if is_interrupt(error):
                raise
            log.debug("plugin %s (%s) cannot be imported", self.name, self.value, exc_info=True)
            raise TpuxError(reason(error)) from error

    def _say_that_it_is_slow(self) -> None:
        """Say on stderr what is being imported: it may never end, and nothing else names it."""
        from tpux.console import say

        say(
            f"still importing {self.value} after {SLOW_IMPORT:.0f} s: the entry point {self.name} of {self.dist}"
            f" {self.version}\n  hint: if the import does not end, set {env.DISABLED_PLUGINS}={self.name}, or uninstall"
            f" {self.dist}"
        )


MAX_SOURCES = 1000
"""A package with more source files is not searched: importing it once is faster."""


def may_implement(found: InstalledPlugin, hook: str) -> bool:
    """Return whether a plugin's package contains the name of a hook; a package without source always might.

    Imports nothing: most plugins are no listeners, and need not be imported to learn that.
    """
    try:
        module = None if found.path else importlib.util.find_spec(re.split("[.:]", found.value, maxsplit=1)[0].strip())
    except (ImportError, ValueError):
        return True  # the import reports it
    if module is None and found.path is None:
        return True
    origins = [found.path] if found.path else [Path(module.origin)] if module and module.origin else []
    directories = (module and module.submodule_search_locations) or []
    sources = [path for directory in directories for path in Path(directory).rglob("*.py")] or origins
    try:
        return len(sources) not in range(1, MAX_SOURCES) or any(hook.encode() in path.read_bytes() for path in sources)
    except OSError:
        return True


def find(group: Group) -> dict[str, InstalledPlugin]:
    """Return what is installed in `group`, sorted by name, without importing any of it."""
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group):
        by_name.setdefault(entry.name, []).append(entry)
    disabling = _Disabling()
    return {name: _installed(group, name, by_name[name], disabling) for name in sorted(by_name)}


class _Disabling:
    """What `$TPUX_DISABLED_PLUGINS` names: plugins, commands, and all that a dist provides.

    `gcp` stands for the dist `tpux-plugin-gcp`, but only where no plugin or command has that name.
    """

    def __init__(self) -> None:
        self.named = {normalized(name): name for name in sorted(env.disabled_plugins())}
        groups: tuple[Group, ...] = ("tpux", "tpux.commands") if self.named else ()
        self.entries = [entry for group in groups for entry in entry_points(group)]
        self._words = {normalized(entry.name) for entry in self.entries}

    def names_of(self, entry: EntryPoint) -> set[str]:
        """Return the normalized names of which any disables an entry point."""
        dist = normalized(entry.dist)
        return {normalized(entry.name), dist, *({re.sub("^tpux-(plugin-)?", "", dist)} - self._words)}

    def by(self, entry: EntryPoint) -> str:
        """Return the name that disables an entry point; "" if none does."""
        return next((self.named[name] for name in sorted(self.names_of(entry)) if name in self.named), "")


def unknown_disabled_plugins() -> list[Problem]:
    """Return a warning for each name in `$TPUX_DISABLED_PLUGINS` that disables nothing."""
    disabling = _Disabling()
    known = {name for entry in disabling.entries for name in disabling.names_of(entry)}
    return [
        Problem(env.DISABLED_PLUGINS, f"no plugin {text!r} is installed", did_you_mean(name, known))
        for name, text in disabling.named.items()
        if name not in known
    ]


def added_commands(prefix: str = "") -> dict[str, InstalledPlugin]:
    """Return the commands that plugins add to `tpux`, or to a group of its commands, by the name that is typed there.

    Args:
        prefix: `config.` for the group `tpux config`.
    """
    found = {name: one for name, one in find("tpux.commands").items() if not one.disabled}
    typed = {name.removeprefix(prefix): one for name, one in found.items() if name.startswith(prefix)}
    return {name: one for name, one in typed.items() if "." not in name}


def load_command(found: InstalledPlugin) -> typer.Typer:
    """Import a command.

    Raises:
        TpuxError: it cannot be imported, or is not a `typer.Typer`.
    """
    import typer

    where = f"command {found.typed} ({found.dist} {found.version})"
    try:
        app = found.load()
    except TpuxError as error:
        hint = error.hint or f"reinstall or upgrade {found.dist}"
        raise TpuxError(error.message, where=where, hint=hint) from error
    if not isinstance(app, typer.Typer):
        hint = "the entry point must name a typer.Typer, such as the one that tpux.api.new_app() makes"
        raise TpuxError(f"{found.value} is a {type(app).__name__}, not a typer.Typer", where=where, hint=hint)
    return app


def module_summary(found: InstalledPlugin) -> str:
    """Return the first line of the docstring of a plugin's or a command's module; "" if it cannot be read.

    Imports nothing: `tpux --help` shows the commands of all plugins.
    """
    package, *modules = re.split("[:]", found.value)[0].strip().split(".")
    try:
        spec = importlib.util.find_spec(package)
        paths = [found.path] if found.path else [Path(spec.origin)] if spec and spec.origin else []
        for directory in (spec.submodule_search_locations or []) if spec and modules else []:
            module = Path(directory, *modules)
            paths = [module.with_suffix(".py"), module / "__init__.py"]
        source = next(path for path in paths if path.is_file()).read_text()
        before, _, rest = source.partition('"""')
        first = rest.partition("\n")[0]
        if not before and first and "\\" not in first:  # to parse all of them takes a third of the time of --help
            return first.partition('"""')[0].strip()
        return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    except (ImportError, OSError, StopIteration, SyntaxError, ValueError):
        return ""


def command_help(found: InstalledPlugin) -> tuple[str, str]:
    """Return what a command does, from the docstring of its module, such as "`tpux NAME` (Watch): show the names".

    In parentheses is the group of `tpux --help` that has the command.

    Args:
        found: the command.

    Returns:
        The group, "" if it names none; and the sentence, or where to read more if the docstring has none, or cannot
        be read.
    """
    said = re.match(rf"`tpux {found.typed}`(?: \((\w[\w ]*)\))?: (.+)", module_summary(found))
    if said is None:
        return "", f"see: tpux {found.typed} --help"
    return said[1] or "", said[2][0].upper() + said[2][1:]


def unmet_requirements(dist: str) -> list[str]:
    """Return the requirements of a dist (`tpux-core>=0.2`) that the installed dists do not satisfy."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        lines = requires(dist) or []
    except PackageNotFoundError:  # its metadata has no name
        return []
    unmet = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            unmet.append(line)
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            unmet.append(f"{requirement.name}{requirement.specifier} (it is not installed)")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            unmet.append(f"{requirement.name}{requirement.specifier} (installed is {installed})")
    return unmet


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception that came out of plugin code may be the user's Ctrl-C, which no boundary catches.

    Python raises it in the main thread only, and only with its own handler; the supervisor's process has another one.
    Any other KeyboardInterrupt is raised by the plugin, and so is each asyncio.CancelledError or GeneratorExit.
    """
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def reason(error: BaseException) -> str:
    """Describe an exception from a plugin in one line."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"the module {error.name!r} is not installed"
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


def _installed(group: Group, name: str, entries: list[EntryPoint], disabling: _Disabling) -> InstalledPlugin:
    first = entries[0]
    broken, hint = name_problem(name, group), f"rename the entry point in {first.dist}"
    if not broken and len(entries) > 1:
        rivals = " and ".join(sorted(f"{entry.dist} ({entry.value})" for entry in entries))
        broken, hint = f"{rivals} both use the name {name!r}", "uninstall one of them"
    disabled_by = next(filter(None, map(disabling.by, entries)), "")
    return InstalledPlugin(name, first.dist, first.version, first.value, disabled_by, broken, hint if broken else "")


def name_problem(name: str, group: Group = "tpux") -> str:
    """Return why a plugin or a command cannot have a name; "" if it can."""
    words = name.split(".") if group == "tpux.commands" else [name]
    if len(words) > 2 or not all(re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", word) for word in words):
        return f"{name!r} is not a valid name: lower-case letters, digits, - and _, beginning with a letter"
    return f"the name {name!r} is reserved for tpux" if group == "tpux" and name in RESERVED else ""

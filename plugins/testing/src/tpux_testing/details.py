"""What one installed plugin consists of, and what is wrong with it that shows without a job."""

from __future__ import annotations

import inspect
import json
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, distribution, requires
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from tpux import durations
from tpux.errors import TpuxError
from tpux.model.events import EVENT_TYPES
from tpux.model.failures import Finding
from tpux.model.sections import Section, TpuSection, names_of
from tpux.plugin import spec
from tpux.plugin.descriptions import descriptions
from tpux.plugin.entrypoints import find, is_interrupt, load_command, reason
from tpux.plugin.manager import Plugins
from tpux.plugin.status import PluginStatus
from tpux.plugin.stdout import stdout_to_stderr

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from tpux.model.json import JsonValue

_Schema = Mapping[str, "JsonValue"]


@dataclass(frozen=True)
class Key:
    """A key of a section.

    Attributes:
        name: as a config has it.
        aliases: other names.
        type: its type, in words.
        required: it has no default.
        default: as JSON; null if there is none.
        description: its docstring.
    """

    name: str
    aliases: list[str]
    type: str
    required: bool
    default: JsonValue
    description: str


@dataclass(frozen=True)
class SectionDetails:
    """A section of a config that a plugin validates, by itself or as the allocator that `tpu` names."""

    name: str
    description: str
    keys: list[Key]


@dataclass(frozen=True)
class PluginDetails:
    """An installed plugin in full.

    Attributes:
        status: as `tpux plugins list` shows it.
        entry_point: what is imported.
        file: where its code is; "" if it cannot be found.
        installed_from: where its dist comes from: a directory, a URL, or that it was an index; "" if unknown.
        events: the types of events that its package names, if it is a listener.
        sections: its own section, and its keys of `tpu`.
        commands: the commands of its dist, with their status.
        requirements: of its dist.
        traceback: why it cannot be imported; "" if it can.
        problems: why a section cannot be shown.
    """

    status: PluginStatus
    entry_point: str
    file: str = ""
    installed_from: str = ""
    events: list[str] = field(default_factory=list)
    sections: list[SectionDetails] = field(default_factory=list)
    commands: list[PluginStatus] = field(default_factory=list)
    requirements: list[str] = field(default_factory=list)
    traceback: str = ""
    problems: list[TpuxError] = field(default_factory=list)


def details_of(name: str, plugins: Plugins, commands: list[PluginStatus]) -> PluginDetails:
    """Return what an installed plugin consists of; imports it.

    Args:
        name: its name.
        plugins: the installed plugins.
        commands: the commands of all plugins.

    Raises:
        TpuxError: no such plugin is installed.
    """
    status = plugins.status(name)
    found = find("tpux").get(name)
    value = found.value if found else ""
    own = [one for one in commands if one.dist == status.dist]
    required = _requirements(status.dist)
    common = PluginDetails(
        status, value, _file_of(value, None), _installed_from(status.dist), commands=own, requirements=required
    )
    try:
        plugin = plugins.load(name)
    except TpuxError as error:
        return replace(common, traceback=_traceback(error))
    sections, problems = _sections(name, plugins)
    file = _file_of(value, plugin)
    events = _events_in(Path(file)) if "on_event" in status.hooks else []
    return replace(common, file=file, events=events, sections=sections, problems=problems)


def _traceback(error: TpuxError) -> str:
    """Return the traceback of the exception that made an import or a registration fail."""
    cause: BaseException | None = error
    while isinstance(cause, TpuxError):
        cause = cause.__cause__
    return "" if cause is None else "".join(traceback.format_exception(cause))


def _file_of(value: str, plugin: object) -> str:
    """Return the file of a plugin; of one that is not imported, the file of its top-level package."""
    try:
        if plugin is not None:
            return inspect.getfile(plugin if inspect.ismodule(plugin) or inspect.isclass(plugin) else type(plugin))
        module = value.partition(":")[0].strip().partition(".")[0]
        found = find_spec(module)
    # A plugin's object may be anything, and a finder may raise anything.
    except Exception:  # noqa: BLE001
        return ""
    return (found.origin or "") if found else ""


def _installed_from(dist: str) -> str:
    """Return where a dist was installed from, as the installer has recorded it (`direct_url.json`, PEP 610)."""
    try:
        found = distribution(dist) if dist else None
        if found is None:
            return ""
        if not (text := found.read_text("direct_url.json")):
            return f"a package index, by {installer.strip()}" if (installer := found.read_text("INSTALLER")) else ""
        recorded = json.loads(text)
        editable = " (editable)" if recorded.get("dir_info", {}).get("editable") else ""
        return f"{str(recorded['url']).removeprefix('file://')}{editable}"
    # The metadata are of the dist, which anyone may have written.
    except (PackageNotFoundError, ValueError, KeyError, AttributeError):
        return ""


def _events_in(file: Path) -> list[str]:
    """Return the types of events that the sources beside a module name, as docs/events.md has them."""
    sources = file.parent.rglob("*.py") if file.name == "__init__.py" else [file]
    named = {name for source in sources for name in re.findall(r"\b[A-Z]\w+", source.read_text(errors="replace"))}
    types = {one.__name__: name for name, one in EVENT_TYPES.items()}
    return sorted(types[name] for name in named & types.keys())


def _requirements(dist: str) -> list[str]:
    try:
        lines = requires(dist) or [] if dist else []
    except PackageNotFoundError:
        return []
    return [line for line in lines if "extra ==" not in line]


# --- sections -----------------------------------------------------------------------------------


def _sections(name: str, plugins: Plugins) -> tuple[list[SectionDetails], list[TpuxError]]:
    sections, problems = [], []
    for word, hook in ((name, spec.config_section), ("tpu", spec.tpu_section)):
        try:
            model = cast("type[Section] | None", plugins.call_one(name, hook))
            if model is not None:
                sections.append(SectionDetails(word, inspect.cleandoc(model.__doc__ or ""), keys_of_model(model)))
        except TpuxError as error:
            problems.append(error)
    return sections, problems


def keys_of_model(model: type[Section]) -> list[Key]:
    """Return the keys of a section; of a `tpu` section, those that core's does not have.

    Raises:
        TpuxError: the model has no JSON Schema.
    """
    try:
        schema = model.model_json_schema()
    # A type that pydantic cannot describe, or a plugin's own hook into the schema.
    except BaseException as error:
        if is_interrupt(error):
            raise
        hint = "give its fields types that have a JSON Schema"
        raise TpuxError(f"the section {model.__name__} has no JSON Schema: {reason(error)}", hint=hint) from error
    properties, definitions = schema.get("properties", {}), schema.get("$defs", {})
    keys, described = [], descriptions(model)
    for name, info in model.model_fields.items():
        if issubclass(model, TpuSection) and not _is_own(model, name):
            continue
        first, *aliases = sorted(names_of(name, info), key=lambda one: one not in properties)
        type_ = _type_in_words(properties.get(first, {}), definitions)
        default = _default(info)
        keys.append(Key(first, aliases, type_, info.is_required(), default, " ".join(described.get(name, "").split())))
    return keys


def _is_own(model: type[TpuSection], name: str) -> bool:
    before_core = model.__mro__[: model.__mro__.index(TpuSection)]
    return any(name in inspect.get_annotations(cls) for cls in before_core)


def _default(info: FieldInfo) -> JsonValue:
    if info.is_required():
        return None
    try:
        return cast("JsonValue", json.loads(json.dumps(info.get_default(call_default_factory=True), default=str)))
    # A default factory is the plugin's code.
    except BaseException as error:
        if is_interrupt(error):
            raise
        return f"({reason(error)})"


def _type_in_words(schema: _Schema, definitions: _Schema) -> str:
    """Return the type of a key in words, such as `list of string`; null, which means "not set", is left out."""
    if isinstance(ref := schema.get("$ref"), str):
        return _type_in_words(cast("_Schema", definitions.get(ref.rpartition("/")[2], {})), definitions)
    if schema.get("pattern") == durations.PATTERN:
        return "duration"
    if isinstance(choices := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return " or ".join(json.dumps(choice) for choice in choices)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        words = [_type_in_words(cast("_Schema", one), definitions) for one in alternatives]
        return " or ".join(dict.fromkeys(word for word in words if word != "null"))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type_in_words(cast('_Schema', schema.get('items') or {}), definitions)}"
    if kind == "object" and isinstance(values := schema.get("additionalProperties"), dict):
        return f"mapping to {_type_in_words(values, definitions)}"
    if kind == "string" and schema.get("format") in {"path", "file-path"}:
        return "path"
    words = [str(one) for one in kind if one != "null"] if isinstance(kind, list) else [str(kind)]
    return " or ".join("mapping" if word == "object" else word for word in words)


# --- declaration --------------------------------------------------------------------------------


def check_declaration(details: PluginDetails, plugins: Plugins) -> list[Finding]:
    """Return what is right and wrong with a plugin's name, requirements, commands and transport.

    Its hooks and sections have contracts, in `tpux_testing`.

    Args:
        details: the plugin.
        plugins: the installed plugins.
    """
    status = details.status
    where = f"plugin {status.name}"
    if status.status in {"broken", "disabled"}:
        return [Finding("error", status.error, where, status.hint)]
    findings = [Finding("ok", f"implements {', '.join(status.hooks)}", where)]
    if status.error:
        findings.append(Finding("warning", status.error, where, status.hint))
    findings += _check_requirement(details)
    findings += _check_transport(status.name, plugins, where)
    for command in details.commands:
        if command.error:
            findings.append(_command_finding(command))
    return findings


def check_command(status: PluginStatus) -> list[Finding]:
    """Return what is right and wrong with a command: its name, its import, and whether it can be run.

    Args:
        status: the command's, from `command_rows`.
    """
    findings = [_command_finding(status)] if status.error else []
    if status.status in {"broken", "disabled"}:
        return findings
    import typer

    where = f"command {status.name}"
    try:
        with stdout_to_stderr():
            typer.main.get_command(load_command(find("tpux.commands")[status.name]))
    # An annotation that Typer does not know, or an app without commands.
    except BaseException as error:
        if is_interrupt(error):
            raise
        return [*findings, Finding("error", f"Typer cannot make a command of it: {reason(error)}", where)]
    return [*findings, Finding("ok", "can be imported and run", where)]


def _command_finding(command: PluginStatus) -> Finding:
    level: Literal["error", "warning"] = "warning" if command.status == "warning" else "error"
    return Finding(level, command.error, f"command {command.name}", command.hint)


def _check_requirement(details: PluginDetails) -> list[Finding]:
    if any(line.lower().replace("_", "-").startswith("tpux-core") for line in details.requirements):
        return []
    message = f"{details.status.dist or 'it'} does not require tpux-core: nothing says which API it needs"
    hint = 'add "tpux-core>=0.1,<0.2" to the dependencies in its pyproject.toml'
    return [Finding("warning", message, f"plugin {details.status.name}", hint)]


def _check_transport(name: str, plugins: Plugins, where: str) -> list[Finding]:
    """Check that the transport is installed that an allocator declares."""
    try:
        model = plugins.call_one(name, spec.tpu_section)
        if model is None or not model.transport or plugins.implements(model.transport, spec.connect):
            return []
        message, hint = f"the transport {model.transport} does not implement connect", ""
    except TpuxError as error:
        message, hint = error.message, error.hint
    return [Finding("error", message, where, hint)]

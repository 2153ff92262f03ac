"""`tpux plugins show`: show a plugin: its config keys, hooks, commands, and last failure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tpux.cli.common import Json, echo, emit, iso, new_app, say, short_id
from tpux_testing.cli.words import WordArg, command_only, installed_commands

if TYPE_CHECKING:
    from tpux.model.json import JsonValue
    from tpux.plugin.status import PluginStatus
    from tpux_testing.details import PluginDetails

app = new_app()


@app.command(epilog="Example: tpux plugins show venv\n\nExample: tpux plugins show venv --json")
def show(word: WordArg, json: Json = False) -> None:
    """Show a plugin: its config keys, hooks, commands, and last failure.

    Also its file and its requirements. The last failure is that of a hook that a job of yours has called, with its
    traceback.
    """
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux_testing import traces
    from tpux_testing.details import details_of

    plugins, commands = Plugins().with_own_files(), installed_commands()
    if command := command_only(word, plugins, commands):
        if json:
            emit(asdict(command))
        else:
            _print_facts({"command": command.name, **_facts(command)})
        return
    details = details_of(word, plugins, commands)
    found = traces.last_failure(Store(), word)
    failure = {**asdict(found), "at": iso(found.at)} if found else None
    if json:
        emit(_to_json(details, failure))
    else:
        _print(details, failure)


def _to_json(details: PluginDetails, failure: dict[str, JsonValue] | None) -> dict[str, object]:
    return {
        **asdict(details.status),
        "entry_point": details.entry_point,
        "file": details.file,
        "installed_from": details.installed_from,
        "events": details.events,
        "sections": [asdict(section) for section in details.sections],
        "commands": [command.name for command in details.commands],
        "requirements": details.requirements,
        "problems": [str(problem) for problem in details.problems],
        "traceback": details.traceback,
        "last_failure": failure,
    }


def _facts(status: PluginStatus) -> dict[str, str]:
    return {
        "dist": f"{status.dist} {status.version}",
        "status": status.status + (f": {status.error}" if status.error else ""),
        "hint": status.hint,
    }


def _print_facts(facts: dict[str, str]) -> None:
    for label, fact in facts.items():
        if fact:
            echo(f"{label + ':':<13} {fact}")


def _print(details: PluginDetails, failure: dict[str, JsonValue] | None) -> None:
    status = details.status
    _print_facts(
        {
            "plugin": status.name,
            **_facts(status),
            "entry point": details.entry_point,
            "file": details.file,
            "from": details.installed_from,
            "hooks": ", ".join(status.hooks),
            "events": ", ".join(details.events),
            "commands": ", ".join(command.name for command in details.commands),
            "requires": ", ".join(details.requirements),
        }
    )
    for section in details.sections:
        echo(f"\nsection {section.name}: {section.description}".rstrip(": "))
        for key in section.keys:
            names = ", ".join([key.name, *key.aliases])
            default = "not set" if key.default is None else f"default {_json(key.default)}"
            echo(f"  {names} ({key.type}; {'required' if key.required else default})")
            if key.description:
                echo(f"      {key.description}")
    for problem in details.problems:
        say(f"error: {problem}")
    if details.traceback:
        echo(f"\n{details.traceback.rstrip()}")
    if failure:
        job = f" in job {short_id(str(failure['job']))}" if failure["job"] else ""
        echo(f"\nlast failure, at {failure['at']}{job}:\n{failure['message']}")
        if failure["traceback"]:
            echo(f"\n{str(failure['traceback']).rstrip()}")


def _json(value: JsonValue) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)

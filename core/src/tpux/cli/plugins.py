"""`tpux plugins`: show the installed plugins and their status, check one, and show a job's trace of hook calls."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from tpux.cli import completion
from tpux.cli.common import Group, JobArg, Json, echo, emit, find_job, iso, new_app, say, short_id
from tpux.errors import Exit, UsageError
from tpux.tables import print_table

if TYPE_CHECKING:
    from tpux.model.failures import Finding
    from tpux.model.json import JsonValue
    from tpux.plugin.details import PluginDetails
    from tpux.plugin.manager import Plugins
    from tpux.plugin.status import PluginStatus
    from tpux.testing.plugin_check import ContractResult

app = new_app()
WordArg = Annotated[
    str, typer.Argument(metavar="WORD", help="The plugin's name, as in a config.", autocompletion=completion.plugins)
]


@app.callback(cls=Group)
def _group() -> None:
    """Show and check the installed plugins."""


@app.command("list", epilog="Example: tpux plugins list --json")
def list_(json: Json = False) -> None:
    """Show each plugin and command of plugins, with its hooks and status. Imports them all."""
    from tpux.cli.main import COMMANDS
    from tpux.plugin.entrypoints import unknown_disabled_plugins
    from tpux.plugin.manager import Plugins

    for problem in unknown_disabled_plugins():
        say(f"warning: {problem}")
    rows = Plugins().rows(COMMANDS)
    if json:
        emit([asdict(row) for row in rows])
    elif rows:
        print_table(
            {
                "name": [row.name for row in rows],
                "dist": [row.dist for row in rows],
                "version": [row.version for row in rows],
                "status": [row.status for row in rows],
                "hooks": [", ".join(row.hooks) or "command" * (row.kind == "command") for row in rows],
            },
            shorten={"hooks": 10},
        )
        for row in rows:
            if row.error and row.status != "disabled":
                say(f"{row.status}: {row.kind} {row.name} ({row.dist} {row.version}): {row.error}\n  hint: {row.hint}")
    else:
        say("no plugins are installed; start with: pip install tpux-plugin-local")


@app.command(epilog="Example: tpux plugins show venv\n\nExample: tpux plugins show venv --json")
def show(word: WordArg, json: Json = False) -> None:
    """Show a plugin: its config keys, hooks, commands, and last failure.

    Also its file and its requirements. The last failure is that of a hook that a job of yours has called, with its
    traceback.
    """
    from tpux.plugin.details import details_of
    from tpux.plugin.manager import Plugins
    from tpux.store import Store, hooks

    plugins, commands = Plugins(), _commands()
    if command := _command_only(word, plugins, commands):
        if json:
            emit(asdict(command))
        else:
            _print_facts({"command": command.name, **_facts(command)})
        return
    details = details_of(word, plugins, commands)
    failure = hooks.last_failure(Store(), word)
    if failure is not None:
        failure = {**failure, "at": iso(cast("float", failure["at"]))}
    if json:
        emit(_to_json(details, failure))
    else:
        _print(details, failure)


def _commands() -> list[PluginStatus]:
    from tpux.cli.main import COMMANDS
    from tpux.plugin.status import command_rows

    return command_rows(COMMANDS)


def _command_only(word: str, plugins: Plugins, commands: list[PluginStatus]) -> PluginStatus | None:
    """Return the command of that name, if no plugin has it."""
    if word in plugins.names(disabled=True):
        return None
    return next((one for one in commands if one.name == word), None)


def _to_json(details: PluginDetails, failure: dict[str, JsonValue] | None) -> dict[str, object]:
    return {
        **asdict(details.status),
        "entry_point": details.entry_point,
        "file": details.file,
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
            "hooks": ", ".join(status.hooks),
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


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="A config that uses the plugin, for the contracts that run its steps."
    ),
]


@app.command(epilog="Example: tpux plugins check apt\n\nExample: tpux plugins check apt --config train.yaml --json")
def check(word: WordArg, config: ConfigOption = None, json: Json = False) -> None:
    """Check a plugin with the contracts of `tpux.testing` that fit it.

    They check its declaration, hooks and config section. With --config also those that run steps or call hooks: modules
    and environments in a temporary home directory on this machine, allocators and transports on the local fixture that
    their dist names. A cloud is never contacted, and without such a fixture the contract is skipped. A listener really
    is called: name a test server in FILE. Of a dist that has only commands: their name and import, and whether they can
    be run.
    """
    from tpux.plugin.manager import Plugins

    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C, so that nothing that was started is left
        signal.signal(number, signal.default_int_handler)
    failed, results = False, []
    for result in _check(word, Plugins(), config):
        failed = failed or result.outcome == "failed"
        results.append(asdict(result))
        if not json:
            message = f": {result.message}" if result.message else ""
            hint = f"\n  hint: {result.hint}" if result.hint else ""
            print_ = echo if result.outcome in {"ok", "skipped"} else say
            print_(f"{result.outcome}: {result.contract}{message}{hint}")
    if json:
        emit(results)
    if failed:
        raise typer.Exit(Exit.ERROR)


def _check(word: str, plugins: Plugins, file: Path | None) -> Iterator[ContractResult]:
    from tpux.plugin.details import check_command, check_declaration, details_of
    from tpux.testing.plugin_check import ContractResult, load_config, run_contracts

    def results(findings: list[Finding]) -> Iterator[ContractResult]:
        for finding in findings:
            outcomes: dict[str, Literal["failed", "warning"]] = {"error": "failed", "warning": "warning"}
            message = f"{finding.where}: {finding.message}"
            yield ContractResult("declaration", outcomes.get(finding.level, "ok"), message, finding.hint)

    commands = _commands()
    config, secrets = load_config(file, plugins) if file else (None, frozenset[str]())
    if command := _command_only(word, plugins, commands):
        yield from results(check_command(command))
        return
    details = details_of(word, plugins, commands)
    yield from results(check_declaration(details, plugins))
    if details.status.status not in {"broken", "disabled"}:
        yield from run_contracts(word, plugins, config, secrets)


@app.command(epilog="Example: TPUX_TRACE_HOOKS=1 tpux run train.yaml; tpux plugins trace 12")
def trace(
    job: JobArg,
    listeners: Annotated[bool, typer.Option("--listeners", help="Also the calls of listeners that succeeded.")] = False,
    json: Json = False,
) -> None:
    """Show which plugin answered which hook of a job.

    The calls are in the order in which they began. A job is traced if TPUX_TRACE_HOOKS=1 was set for the command that
    created it, or that last started it again.
    """
    from tpux.store import Store, hooks

    record = find_job(Store(), job)
    calls = hooks.read_trace(record.directory)
    if calls is None:
        shown = short_id(record.id)
        hint = f"TPUX_TRACE_HOOKS=1 tpux resume {shown} traces it from then on, TPUX_TRACE_HOOKS=1 tpux run a new job"
        raise UsageError(f"the hook calls of job {shown} are not traced", hint=hint)
    calls = sorted(calls, key=lambda call: cast("float", call["at"]))
    shown_calls = [call for call in calls if listeners or call["hook"] != "on_event" or call["outcome"] == "failed"]
    rows = [{**call, "at": iso(cast("float", call["at"]))} for call in shown_calls]
    if json:
        emit(rows)
        return
    from tabulate import tabulate

    cells = [
        (
            str(row["at"])[:23].replace("T", " "),
            row["plugin"],
            row["hook"],
            "-" if row["worker"] is None else row["worker"],
            f"{row['seconds']:.3f}",
            f"{row['own_seconds']:.3f}",
            "-" if row["steps"] is None else row["steps"],
            f"{row['outcome']}: {row['error']}" if row["error"] else row["outcome"],
        )
        for row in rows
    ]
    headers = ("TIME", "PLUGIN", "HOOK", "WORKER", "SECONDS", "IN PLUGIN", "STEPS", "RESULT")
    echo(tabulate(cells, headers=headers, tablefmt="plain", disable_numparse=True))

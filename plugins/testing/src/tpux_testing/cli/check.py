"""`tpux plugins check`: check a plugin with the contracts that fit it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tpux.cli.common import Json, echo, emit, new_app, say
from tpux.errors import Exit
from tpux_testing.cli.words import PluginOrDist, command_only, installed_commands, names_of_dist

if TYPE_CHECKING:
    from tpux.model.failures import Finding
    from tpux.plugin.manager import Plugins
    from tpux_testing.plugin_check import ContractResult

app = new_app()

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", metavar="FILE", help="A config that uses the plugin, for the contracts that run its steps."
    ),
]


@app.command(
    epilog="Example: tpux plugins check apt --config train.yaml\n\nExample: tpux plugins check tpux-plugin-apt --json"
    "\n\nExample: tpux plugins check ./my_rule.py --config train.yaml"
)
def check(word: PluginOrDist, config: ConfigOption = None, json: Json = False) -> None:
    """Check a plugin, or all that a dist provides, with the contracts of `tpux_testing` that fit.

    They check its declaration, hooks and config section. With --config also those that run steps or call hooks: modules
    and environments in a temporary home directory on this machine, allocators and transports on the local fixture that
    their dist names. A cloud is never contacted, and without such a fixture the contract is skipped. A listener really
    is called: name a test server in FILE. Of a command: its name and import, and whether it can be run; if PLUGIN is a
    dist, such as tpux-plugin-gcp, also its help, its errors of use and what it prints. Of a file: what
    plugins.files checks, and the same contracts, with a config whose plugins.files names it.
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
    from tpux_testing.details import check_command, check_declaration, details_of
    from tpux_testing.plugin_check import ContractResult, load_config, run_contracts

    def results(findings: list[Finding]) -> Iterator[ContractResult]:
        for finding in findings:
            outcomes: dict[str, Literal["failed", "warning"]] = {"error": "failed", "warning": "warning"}
            message = f"{finding.where}: {finding.message}"
            yield ContractResult("declaration", outcomes.get(finding.level, "ok"), message, finding.hint)

    if word.endswith(".py"):
        yield from _check_file(Path(word), plugins, file)
        return
    commands = installed_commands()
    config, secrets = load_config(file, plugins) if file else (None, frozenset[str]())
    if names := names_of_dist(word, plugins, commands):
        for name, kind in names:
            for result in _check(name, plugins, file) if kind == "plugin" else _check_command(name):
                yield replace(result, contract=f"{name.replace('.', ' ')}: {result.contract}")
        return
    if command := command_only(word, plugins, commands):
        yield from results(check_command(command))
        return
    details = details_of(word, plugins, commands)
    yield from results(check_declaration(details, plugins))
    if details.status.status not in {"broken", "disabled"}:
        yield from run_contracts(word, plugins, config, secrets)


def _check_file(path: Path, plugins: Plugins, config: Path | None) -> Iterator[ContractResult]:
    from tpux.plugin import local_files
    from tpux_testing.plugin_check import load_config, run_contract, run_contracts

    name = path.stem
    file = plugins.with_files(local_files.found([path.absolute()], plugins.installed))
    declared = run_contract("declaration", lambda: file.load(name))
    yield declared
    if declared.outcome == "ok":
        given, secrets = load_config(config, plugins) if config else (None, frozenset[str]())
        yield from run_contracts(name, file, given, secrets, file.load(name))


def _check_command(name: str) -> Iterator[ContractResult]:
    from tpux_testing.commands import command_contract
    from tpux_testing.plugin_check import run_contract

    yield run_contract("command_contract", lambda: command_contract(name.replace(".", " ")))

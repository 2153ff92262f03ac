"""The command line in a store of its own, and the contract of commands that plugins add."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import typer.main

from tpux import env
from tpux.model.json import JsonValue
from tpux.plugin.entrypoints import find, load_command
from tpux_testing.contract import ContractError, contract
from tpux_testing.sandbox import Config

COMMAND_TIMEOUT = 300.0
"""Seconds that a command may take."""
_BUGS = ("Traceback (most recent call last)", "a bug in tpux", "a bug in the command")


class CommandLine:
    """The command `tpux` with a HOME, a store and a supervisor of its own, as the fixture `tpux_cli` gives it.

    Each call is a process. Jobs are deleted at the end of the test, and the supervisor is stopped.

    Args:
        directory: where everything is, such as pytest's `tmp_path`.

    Attributes:
        work: the directory in which commands run.
        env: their environment.

    Example:
        def test_tally(tpux_cli):
            tpux_cli.run_job({"command": {"cmd": "exit 3"}})
            assert tpux_cli.json("tally") == {"failed": 1}
    """

    def __init__(self, directory: Path) -> None:
        self.work = directory / "work"
        home = directory / "home"
        for path in (self.work, home):
            path.mkdir(parents=True)
        self._store = home / ".tpux"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TPUX_")}
        own = {"HOME": str(home), env.HOME: str(self._store), "PYTHONUSERBASE": site.getuserbase()}
        self.env = {**kept, **own}

    def __call__(self, *args: str, code: int | None = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run `tpux ARGS`.

        Args:
            args: the arguments.
            code: the exit code that is expected; None for any.
            stdin: what it may read.

        Returns:
            The process that has ended, with `stdout`, `stderr` and `returncode`.

        Raises:
            AssertionError: another exit code, or an exception that is not for users.
        """
        __tracebackhide__ = True
        command = [sys.executable, "-m", "tpux", *map(str, args)]
        done = subprocess.run(
            command,
            check=False,
            cwd=self.work,
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT,
        )
        if code not in {None, done.returncode} or any(bug in done.stderr for bug in _BUGS):
            shown = f"`tpux {' '.join(args)}` exited with {done.returncode}"
            raise AssertionError(f"{shown}\n{done.stdout}{done.stderr}")
        return done

    def json(self, *args: str) -> JsonValue:
        """Run `tpux ARGS --json`, and return what it prints."""
        found: JsonValue = json.loads(self(*args, "--json").stdout)
        return found

    def run_job(self, config: Config | None = None, *, keep: bool = False) -> str:
        """Run a job until it has ended, and return its id.

        Args:
            config: the config as text or as a mapping; without the section `command`, it runs `true`.
            keep: its machines are not released, so that commands such as `tpux exec` can be tried on them.
        """
        if not isinstance(config, str):
            config = json.dumps({"command": {"cmd": "true"}, **(config or {})}, default=str)
        path = self.work / f"job-{len([*self.work.glob('job-*.yaml')]) + 1}.yaml"
        path.write_text(config)
        job = self("create", path.name, *(["tpu.release=never"] if keep else [])).stdout.strip()
        self("wait", job, code=None)  # the exit code is how the job has ended
        return job

    def __enter__(self) -> CommandLine:
        return self

    def __exit__(self, *_: object) -> None:
        if not (self._store / "jobs").exists():
            return
        with ExitStack() as stack:
            stack.callback(self, "supervisor", "stop")
            jobs = self.json("list")
            if ids := [str(job["id"]) for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []:
                self("delete", *ids, "-y", "--force")


@contract
def command_contract(
    command: str,
    *calls: Sequence[str],
    wrong: Sequence[Sequence[str]] = (),
    cli: CommandLine | None = None,
) -> None:
    """Test a command that a plugin adds, and all its subcommands.

    The help of each says what it does, describes each option and has an example. An unknown option is an error of use:
    exit code 2, one message on stderr, nothing on stdout; so is each of `wrong`. Each of `calls` ends without an
    exception that is not for users; one with `--json` prints JSON to stdout, and nothing else.

    Args:
        command: the command as it is typed, such as `tally`, or `config lint` for one in a group.
        calls: the arguments of a call each, such as `["1", "--json"]`; it may fail, but not with exit code 2.
        wrong: arguments of calls that are errors of use, such as `["no-such-job"]`.
        cli: the fixture `tpux_cli`, with the jobs that the calls need; by default a store without jobs.

    Raises:
        ContractError: the command does not keep it.

    Example:
        def test_contract(tpux_cli):
            job = tpux_cli.run_job(keep=True)
            command_contract("uptime", [job], [job, "--json"], wrong=[["no-such-job"]], cli=tpux_cli)
    """
    entry = find("tpux.commands").get(command.replace(" ", "."))
    if entry is None:
        raise ContractError(command, "", "no entry point of the group `tpux.commands` has this name")
    try:
        root = typer.main.get_command(load_command(entry))
    except Exception as error:
        raise ContractError(command, "", f"Typer cannot make a command of it: {error!r}") from error
    for words, one in _commands(command, root):
        _check_help(command, words, one)
    with ExitStack() as stack:
        if cli is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="tpux-testing-"))
            cli = stack.enter_context(CommandLine(Path(directory)))
        for arguments in (["--no-such-option"], *wrong):
            _check_error_of_use(cli, command, arguments)
        for arguments in calls:
            _check_call(cli, command, arguments)


def _commands(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from _commands(f"{words} {name}", one)


def _check_help(name: str, words: str, command: click.Command) -> None:
    if not (command.help or "").strip():
        raise ContractError(name, "", f"`tpux {words} --help` does not say what it does: give it a docstring")
    for param in command.params:
        if not getattr(param, "help", None):
            what = param.opts[0] if isinstance(param, click.Option) else param.make_metavar(click.Context(command))
            raise ContractError(name, "", f"`tpux {words} --help` does not describe {what}: give it help=...")
    epilog = command.epilog or ""
    if not isinstance(command, click.Group) and not ("Example: " in epilog and f"tpux {words}" in epilog):
        message = f"`tpux {words} --help` has no example: app.command(epilog='Example: tpux {words} ...')"
        raise ContractError(name, "", message)


def _check_error_of_use(cli: CommandLine, name: str, arguments: Sequence[str]) -> None:
    done = _run(cli, name, arguments)
    shown = f"`tpux {' '.join([name, *arguments])}`"
    if done.returncode != 2:
        message = f"{shown} exited with {done.returncode}, not with 2: raise UsageError for what the user typed"
        raise ContractError(name, "", f"{message}\n{done.stderr}")
    if done.stdout:
        raise ContractError(name, "", f"{shown} writes to stdout, which is for data: {done.stdout!r}")


def _check_call(cli: CommandLine, name: str, arguments: Sequence[str]) -> None:
    done = _run(cli, name, arguments)
    shown = f"`tpux {' '.join([name, *arguments])}`"
    if done.returncode == 2:
        raise ContractError(name, "", f"{shown} exited with 2, which is for errors of use\n{done.stderr}")
    if "--json" in arguments:
        try:
            json.loads(done.stdout)
        except ValueError as error:
            message = f"{shown} does not print JSON to stdout: {error}; use api.emit, and api.say for messages"
            raise ContractError(name, "", f"{message}\n{done.stdout}{done.stderr}") from error


def _run(cli: CommandLine, name: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return cli(*name.split(), *arguments, code=None)
    except AssertionError as error:
        raise ContractError(name, "", f"an exception that is not for users; raise TpuxError: {error}") from error

"""`tpux`: dispatch to the command and print errors in one place."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

import click
import typer
import typer.main

from tpux.cli.group import Group, save_traceback
from tpux.console import end_interrupted_line, say
from tpux.errors import Exit, TpuxError
from tpux.plugin.stdout import keep_stdout

if TYPE_CHECKING:
    from collections.abc import MutableMapping

# The commands by their group in `tpux --help`: the module and the help line of each, so that it imports none.
GROUPS = {
    "Run": {
        "run": ("run", "Create a job and follow it to its end."),
        "create": ("create", "Create a job; the supervisor runs it in the background."),
        "wait": ("wait", "Wait until jobs have ended."),
        "stop": ("stop", "Stop jobs; keep their machines for a resume, or release them."),
        "resume": ("resume", "Start jobs again from their last checkpoint."),
        "rerun": ("rerun", "Start jobs again from scratch."),
        "delete": ("delete", "Stop jobs, release their machines, and remove their records."),
    },
    "Watch": {
        "list": ("list", "Show the jobs."),
        "show": ("show", "Show a job in full."),
        "logs": ("logs", "Print the output of a job's program or of a setup module."),
    },
    "Workers": {
        "restart": ("restart", "Start jobs' programs again on the same machines, without set-up."),
        "setup": ("setup", "Prepare a job's workers without running the command."),
    },
    "Config": {
        "init": ("init", "Write a commented config for what is installed."),
        "preflight": ("preflight", "Check a config and what it depends on; create nothing."),
        "config": ("config", "Validate and show configs."),
        "rules": ("rules", "Show which action follows which failure."),
    },
    "Administration": {
        "tag": ("tag", "Change the tags of jobs."),
        "clean": ("clean", "Remove the records of jobs that have ended."),
        "plugins": ("plugins", "Show the installed plugins."),
        "store": ("store", "Say what became of a store that was moved or copied."),
        "supervisor": ("supervisor", "Show, start or stop the process that runs your jobs."),
        "completion": ("completion", "Print the completion script of a shell."),
    },
}
_ALIASES = {"cancel": ("stop", "Same as stop.")}
"""Other names of commands, which no list shows."""
COMMANDS = {name: found for group in (*GROUPS.values(), _ALIASES) for name, found in group.items()}


class Commands(Group):
    """Core's commands, then the plugins'; each is imported only when it is called."""

    prefix = ""

    def own_groups(self, limit: int = 80) -> dict[str, dict[str, str]]:
        """Return core's commands by their group, each with its help line."""
        del limit
        return {group: {name: line for name, (_, line) in commands.items()} for group, commands in GROUPS.items()}

    def own_command(self, name: str) -> click.Command:
        """Return a command of core's."""
        command = typer.main.get_command(import_module(f"tpux.cli.{COMMANDS[name][0]}").app)
        command.name = name
        return command

    def is_own(self, name: str) -> bool:
        """Return whether core has a command of that name."""
        return name in COMMANDS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed, with the name under which it was typed.

        Raises:
            click.UsageError: there is no such command.
        """
        if args and not self.has_command(ctx, args[0]):
            from tpux.plugin.synonyms import words

            with_job = args[0] == "status" and any(not word.startswith("-") for word in args[1:])
            args = [*("show" if with_job else words("aliases").get(args[0], args[0])).split(), *args[1:]]
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            command.name = name
        return name, command, rest

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was typed."""
        try:
            answer = super().invoke(ctx)
        except KeyboardInterrupt:  # typer ends the process with 130
            end_interrupted_line()
            raise
        except click.exceptions.Exit:
            _warn_if_misplaced()
            raise
        _warn_if_misplaced()
        return answer

    def _main_shell_completion(
        self, ctx_args: MutableMapping[str, object], prog_name: str, complete_var: str | None = None
    ) -> None:
        if os.environ.get("_TPUX_COMPLETE"):
            from typer._completion_classes import completion_init

            completion_init()  # registers typer's own shell classes, which the completion scripts expect
        super()._main_shell_completion(ctx_args, prog_name, complete_var)


def core_commands() -> set[str]:
    """Return the names of core's commands, and those of the groups that plugins extend, as `GROUP.NAME`."""
    from tpux.plugin.entrypoints import find

    extended = {name.partition(".")[0] for name in find("tpux.commands") if "." in name}
    apps = {name: import_module(f"tpux.cli.{COMMANDS[name][0]}").app for name in extended & COMMANDS.keys()}
    groups = {name: typer.main.get_command(app) for name, app in apps.items()}
    inner = {f"{name}.{one}" for name, group in groups.items() if isinstance(group, Group) for one in group.commands}
    return {*COMMANDS, *inner}


def _warn_if_misplaced() -> None:
    """Warn if the store was moved or copied, and the user has not said which: commands that only read still work."""
    from tpux import env
    from tpux.store import identity

    with suppress(OSError, TpuxError):  # of a command that does not need the store
        if why := identity.misplaced(env.home()):
            say(f"warning: {env.home()}: " + why.replace("\n", "\n  hint: "))


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tpux {version('tpux-core')}")
        raise typer.Exit


app = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=False,
    context_settings={"help_option_names": ["--help", "-h"]},  # those of all commands, of plugins too
)


@app.callback(invoke_without_command=True, epilog="Example: tpux run train.yaml")
def tpux(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Run training jobs on Cloud TPU VMs and restart them after every preemption until they have finished.

    Without a command, show the jobs.
    """
    del version
    columns = _apply_display()
    ctx.default_map = {"list": {"columns": columns}} if columns else None
    if ctx.invoked_subcommand is None:
        from tpux.cli.list import known_columns, show_jobs

        show_jobs(columns=known_columns(columns))


def _apply_display() -> str | None:
    """Let the settings below `display` decide on colours and times, unless the environment does; return the columns.

    Errors are those of the commands that need a setting: `tpux config set` must be able to mend them.
    """
    from tpux import env

    try:
        if not any(b"display" in path.read_bytes() for path in env.settings_files() if path.exists()):
            return None  # without the parser, whose import takes as long as `tpux list`
        from tpux.config import settings

        display = settings.read_settings(settings.read_files(), []).display
    except (OSError, TpuxError):
        return None
    variable = settings.COLOURS.get(display.get("colours", ""))
    if variable and not os.environ.keys() & {*settings.COLOURS.values()}:
        os.environ[variable] = "1"
    if zone := display.get("time_zone"):
        os.environ.setdefault("TZ", zone)
        time.tzset()
    return display.get("columns")


def main() -> None:
    """Run the command line and exit."""
    keep_stdout()
    code = run(typer.main.get_command(app))
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python ends would print a traceback
    sys.exit(code)


def run(command: click.Command) -> int:
    """Run `command` with the process's arguments and print any error.

    Args:
        command: the top-level command.

    Returns:
        The exit code.
    """
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see tpux.__main__
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = command.main(prog_name="tpux", standalone_mode=False)
    except click.ClickException as error:
        _report_click_error(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        end_interrupted_line()
        say("interrupted")
        return Exit.ERROR
    except TpuxError as error:
        for message in error.messages():
            say(f"error: {message}")
        return error.exit_code
    except BrokenPipeError:  # `tpux list | head`
        _discard_unwritten()
        return Exit.ERROR
    except OSError as error:
        if _discard_unwritten():
            say(f"error: standard output: {error.strerror or error}")
            return Exit.ERROR
        say(f"error: {_describe(error)}")
        return Exit.ERROR
    except Exception as error:  # noqa: BLE001  (the last boundary: a bug in tpux, saved in full to a file)
        file = save_traceback(error)
        say(f"error: a bug in tpux: {type(error).__name__}: {error}\n  hint: please report it with {file}")
        return Exit.ERROR
    return code if isinstance(code, int) else Exit.OK


def _report_click_error(error: click.ClickException) -> None:
    """Print an error of click, such as an unknown option, in the form of every other error."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # since click 8.2
        error.show()  # the help
        return
    message = error.format_message().removesuffix(".")
    if message[1:2].islower():
        message = message[:1].lower() + message[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = f"{context.command_path} --help" if context else ""
    if isinstance(error, click.NoSuchOption) and (key := _key_of(error)):
        message, command = f"no such option {error.option_name!r}", f"{key} Keys follow the config: KEY=VALUE"
    hint = f"\n  hint: {command}" if command not in message else ""
    say(f"error: {message}{hint}")


def _key_of(error: click.NoSuchOption) -> str:
    """Return what to write for an option that is a key of a config, "" if the command takes none or no key is meant."""
    if error.ctx is None or "overrides" not in {param.name for param in error.ctx.command.params}:
        return ""
    import difflib

    name, others = error.option_name.lstrip("-"), [option.lstrip("-") for option in error.possibilities or []]
    if difflib.get_close_matches(name, others, cutoff=0.8):  # click itself names far ones too, such as --on for --zone
        return ""
    from tpux.config.models import keys_by_section
    from tpux.plugin.manager import Plugins
    from tpux.plugin.synonyms import key_hint

    return key_hint([error.option_name.lstrip("-")], keys_by_section(Plugins())).replace(": ", "=")


def _discard_unwritten() -> bool:
    """Discard what cannot be written to stdout: Python would try it again as it ends. Returns whether there was any."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _describe(error: OSError) -> str:
    from tpux import env

    if isinstance(error, FileNotFoundError) and error.filename is None and env.current_directory() is None:
        return "the current directory no longer exists\n  hint: change to another one: cd"
    return f"{error.filename or 'the system'}: {error.strerror or error}{_hint(error)}"


def _hint(error: OSError) -> str:
    import errno

    from tpux import env

    home = env.given_home()  # which reads nothing: that may be what failed
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"\n  hint: free some space; jobs are stored in {home} (set {env.HOME} to change it)"
    if str(error.filename).startswith(str(home)):
        return f"\n  hint: jobs are stored in {home}; set {env.HOME} to a writable directory"
    return ""


if __name__ == "__main__":
    main()

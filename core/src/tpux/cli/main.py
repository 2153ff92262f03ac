"""`tpux`: dispatch to the command and print errors in one place."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

import click
import typer.core
import typer.main

from tpux.cli.common import Group
from tpux.console import end_interrupted_line, say
from tpux.errors import Exit, TpuxError
from tpux.plugin.stdout import keep_stdout

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from click.shell_completion import CompletionItem

# Each command's module and help line, so that `tpux --help` imports no command.
COMMANDS = {
    "run": ("run", "Create a job and follow it to its end."),
    "create": ("create", "Create a job; the supervisor runs it in the background."),
    "list": ("list", "Show the jobs."),
    "show": ("show", "Show a job in full."),
    "history": ("history", "Show what happened to your jobs, and how time was spent."),
    "logs": ("logs", "Print the output of a job's program or of a setup module."),
    "exec": ("exec", "Run a command on a job's workers in parallel."),
    "cp": ("cp", "Copy a file to or from a job's workers."),
    "wait": ("wait", "Wait until jobs have ended."),
    "stop": ("stop", "Stop jobs; keep their machines for a resume, or release them."),
    "cancel": ("stop", "Same as stop."),
    "resume": ("resume", "Start jobs again from their last checkpoint."),
    "reboot": ("reboot", "Stop jobs and resume them on the same machines."),
    "restart": ("restart", "Start jobs' programs again on the same machines, without set-up."),
    "rerun": ("rerun", "Start jobs again from scratch."),
    "delete": ("delete", "Stop jobs, release their machines, and remove their records."),
    "clean": ("clean", "Remove the records of jobs that have ended."),
    "setup": ("setup", "Prepare a job's workers without running the command."),
    "check": ("check", "Check whether a job's workers are ready."),
    "diagnose": ("diagnose", "Examine a job and its workers, with the remedy of each problem."),
    "solve": ("solve", "Repair workers: end what holds the TPU, remove stale locks."),
    "preflight": ("preflight", "Check a config and what it depends on; create nothing."),
    "rules": ("rules", "Show which action follows which failure."),
    "plugins": ("plugins", "Show the installed plugins."),
    "config": ("config", "Validate and show configs, and print their schema."),
    "store": ("store", "Say what became of a store that was moved or copied."),
    "supervisor": ("supervisor", "Show, start or stop the process that runs your jobs."),
    "completion": ("completion", "Print the completion script of a shell."),
}

# Commands of jobman and tpu_manager under the name that they have here; `status` with a job is `show`.
ALIASES = {"ls": "list", "ps": "list", "status": "list", "describe": "diagnose", "kill": "stop"}
# Those whose feature does not exist, and what to do instead.
HINTS = {
    "monitor": "tpux has no live table: watch tpux list, or follow a job with tpux logs -f JOB",
    "queue": "tpux has no task queue: create one job for each task, tpux create CONFIG; they run at the same time",
}


class Commands(Group):
    """Core's commands, then the plugins'; each is imported only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the help."""
        del ctx
        from tpux.plugin.entrypoints import command_plugins

        return [*COMMANDS, *(name for name in command_plugins() if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or None if there is none of that name.

        Raises:
            TpuxError: the plugin that adds the command is broken.
        """
        del ctx
        if cmd_name in COMMANDS:
            return typer.main.get_command(import_module(f"tpux.cli.{COMMANDS[cmd_name][0]}").app)
        from tpux.plugin.entrypoints import command_plugins

        if (load := command_plugins().get(cmd_name)) is None:
            return None
        app = load()
        try:
            return typer.main.get_command(app)
        except Exception as error:  # an app without commands, or an annotation that Typer does not know
            raise _command_error(cmd_name, error) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed, with the name under which it was typed.

        Raises:
            click.UsageError: there is no such command.
        """
        if args and args[0] in {*ALIASES, *HINTS} and not self.has_command(ctx, args[0]):
            if args[0] in HINTS:
                raise click.UsageError(HINTS[args[0]], ctx)
            with_job = args[0] == "status" and any(not word.startswith("-") for word in args[1:])
            args = ["show" if with_job else ALIASES[args[0]], *args[1:]]
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            command.name = name
        return name, command, rest

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was typed.

        Raises:
            TpuxError: a plugin's command raised an exception that is not for users; it names the command and its dist.
        """
        try:
            answer = super().invoke(ctx)
        except KeyboardInterrupt:  # typer ends the process with 130
            end_interrupted_line()
            raise
        except click.exceptions.Exit:
            _warn_if_misplaced()
            raise
        except (TpuxError, OSError, click.ClickException, click.Abort):
            raise
        except Exception as error:
            from tpux.plugin.entrypoints import find

            name = ctx.invoked_subcommand
            if name is None or name in COMMANDS or name not in find("tpux.commands"):
                raise
            raise _command_error(name, error) from error
        _warn_if_misplaced()
        return answer

    def has_command(self, ctx: click.Context, name: str) -> bool:
        """Return whether there is a command of that name; the entry points are not read for one of core's."""
        return name in COMMANDS or super().has_command(ctx, name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names and options without importing a command."""
        from click.shell_completion import CompletionItem

        lines = {name: COMMANDS[name][1] if name in COMMANDS else "" for name in self.list_commands(ctx)}
        items = [CompletionItem(name, help=line) for name, line in lines.items() if name.startswith(incomplete)]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def _main_shell_completion(
        self, ctx_args: MutableMapping[str, object], prog_name: str, complete_var: str | None = None
    ) -> None:
        if os.environ.get("_TPUX_COMPLETE"):
            from typer._completion_classes import completion_init

            completion_init()  # registers typer's own shell classes, which the completion scripts expect
        super()._main_shell_completion(ctx_args, prog_name, complete_var)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])
        del ctx
        from tpux.plugin.entrypoints import command_summary, find

        commands = [one for one in find("tpux.commands").values() if not one.disabled and one.name not in COMMANDS]
        if commands:
            with formatter.section("Commands of plugins"):
                formatter.write_dl([(one.name, command_summary(one)) for one in commands])


def _command_error(name: str, error: Exception) -> TpuxError:
    """Return the error for an exception in a plugin's command, which names the command and its dist."""
    from tpux.plugin.entrypoints import find, reason

    found = find("tpux.commands")[name]
    where = f"command {name} ({found.dist} {found.version})"
    hint = f"a bug in the command: report it to the authors of {found.dist} with {_save_traceback(error)}"
    return TpuxError(reason(error), where=where, hint=hint)


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
    cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, no_args_is_help=False
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
    if ctx.invoked_subcommand is None:
        from tpux.cli.list import show_jobs

        show_jobs()


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
        say(f"error: {error}")
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
        file = _save_traceback(error)
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
    hint = f"\n  hint: {command}" if command not in message else ""
    say(f"error: {message}{hint}")


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

    home = env.home()
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"\n  hint: free some space; jobs are stored in {home} (set {env.HOME} to change it)"
    if str(error.filename).startswith(str(home)):
        return f"\n  hint: jobs are stored in {home}; set {env.HOME} to a writable directory"
    return ""


def _save_traceback(error: Exception) -> str:
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="tpux-bug-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    return file.name


if __name__ == "__main__":
    main()

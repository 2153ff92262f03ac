"""Groups of commands, such as `tpux` and `tpux config`: their own commands, and those that plugins add to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import typer.core
import typer.main

from tpux.errors import TpuxError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_ENDING = {"stop", "cancel", "delete", "clean", "rerun", "restart", "resume", "uninstall"}
"""Commands that end or change something: never suggested for their spelling, because a suggestion is soon typed."""


class Group(typer.core.TyperGroup):
    """A group of commands, which suggests the command that may have been meant.

    A plugin adds a command to the group `tpux config` by an entry point `config.NAME`. It is imported only when it is
    called.
    """

    @property
    def prefix(self) -> str:
        """What the entry points of added commands begin with."""
        return f"{self.name}."

    def own_groups(self, limit: int = 80) -> dict[str, dict[str, str]]:
        """Return the group's own commands under the heads of the help, each with its help line.

        Args:
            limit: characters of a line.
        """
        return {"Commands": {name: command.get_short_help_str(limit) for name, command in self.commands.items()}}

    def own_lines(self) -> dict[str, str]:
        """Return the group's own commands, each with its help line."""
        return {name: line for lines in self.own_groups().values() for name, line in lines.items()}

    def own_command(self, name: str) -> click.Command | None:
        """Return one of the group's own commands, or None if it has none of that name."""
        return self.commands.get(name)

    def is_own(self, name: str) -> bool:
        """Return whether a command is the group's own."""
        return name in self.commands

    def has_command(self, ctx: click.Context, name: str) -> bool:
        """Return whether there is a command of that name; the entry points are not read for one of its own."""
        return self.is_own(name) or name in self.list_commands(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the help."""
        del ctx
        from tpux.plugin.entrypoints import added_commands

        own = [*self.own_lines()]
        return [*own, *(name for name in added_commands(self.prefix) if name not in own)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, or None if there is none of that name.

        Raises:
            TpuxError: the plugin that adds the command is broken.
        """
        del ctx
        if self.is_own(cmd_name):
            return self.own_command(cmd_name)
        from tpux.plugin.entrypoints import added_commands, load_command

        if (found := added_commands(self.prefix).get(cmd_name)) is None:
            return None
        app = load_command(found)
        try:
            return typer.main.get_command(app)
        except Exception as error:  # an app without commands, or an annotation that Typer does not know
            raise _command_error(self.prefix + cmd_name, error) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that was typed; suggest the closest one, or what to install, if it does not exist.

        Raises:
            click.UsageError: there is no such command.
        """
        word = args[0] if args else "-"
        if not ctx.resilient_parsing and not word.startswith("-") and not self.has_command(ctx, word):
            from tpux.plugin.catalog import DIST_OF_COMMAND, did_you_mean
            from tpux.plugin.synonyms import meant

            if word == "help" and not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            if word == "help":
                return self.resolve_command(ctx, [*args[1:], "--help"])
            if "." not in word and (dist := DIST_OF_COMMAND.get(self.prefix + word)):
                raise click.UsageError(f"{ctx.command_path} {word} is not installed: pip install {dist}", ctx)
            harmless = [name for name in self.list_commands(ctx) if name not in _ENDING]
            hint = meant("commands", self.prefix + word) or did_you_mean(word, harmless)
            hint = hint or f"{ctx.command_path} --help lists the commands"
            raise click.UsageError(f"unknown command {word!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was typed.

        Raises:
            TpuxError: a plugin's command raised an exception that is not for users; it names the command and its dist.
        """
        try:
            return super().invoke(ctx)
        except (TpuxError, OSError, click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            from tpux.plugin.entrypoints import find

            name = ctx.invoked_subcommand
            if name is None or self.is_own(name) or self.prefix + name not in find("tpux.commands"):
                raise
            raise _command_error(self.prefix + name, error) from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names and options without importing a plugin's command."""
        from click.shell_completion import CompletionItem

        lines = self.own_lines()
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=lines.get(name, "")) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by their groups without importing those of plugins."""
        del ctx
        from tpux.plugin.entrypoints import added_commands, command_help

        added = {name: found for name, found in added_commands(self.prefix).items() if not self.is_own(name)}
        width = max(map(len, [*self.own_lines(), *added]))
        groups = self.own_groups(formatter.width - 6 - width)
        for name, found in added.items():
            group, line = command_help(found)
            groups.setdefault("Commands of plugins" if self.prefix else group or found.dist, {})[name] = line
        for group, lines in groups.items():
            with formatter.section(group):
                formatter.write_dl([(f"{name:<{width}}", line) for name, line in lines.items()])


def _command_error(name: str, error: Exception) -> TpuxError:
    """Return the error for an exception in a plugin's command, which names the command and its dist."""
    from tpux.plugin.entrypoints import find, reason

    found = find("tpux.commands")[name]
    where = f"command {found.typed} ({found.dist} {found.version})"
    hint = f"a bug in the command: report it to the authors of {found.dist} with {save_traceback(error)}"
    return TpuxError(reason(error), where=where, hint=hint)


def save_traceback(error: Exception) -> str:
    """Write the traceback of an exception to a temporary file; return its path."""
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="tpux-bug-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    return file.name

"""`tpux plugins package`: make a dist of a plugin that is a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpux.cli.common import new_app
from tpux_testing.cli.new import Directory, say_what_is_next, taken

app = new_app()


@app.command(epilog="Example: tpux plugins package my_rule.py")
def package(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plugin, as plugins.files names it.")],
    directory: Directory = Path(),
) -> None:
    """Write the project of a dist that has a plugin that is a file.

    It is written to tpux-plugin-NAME, where NAME is that of the file without .py; the code is a copy. What is printed
    are the commands to type next. Once it is installed, remove FILE from plugins.files, or from the directory of your
    own plugins: two plugins cannot have one name.
    """
    from tpux.errors import UsageError
    from tpux_testing import new_plugin

    name = file.stem
    if file.suffix != ".py" or not file.is_file():
        raise UsageError(f"{file} is no file whose name ends with .py", hint="tpux plugins package my_rule.py")
    new_plugin.check_name(name, taken("plugin"))
    written = new_plugin.write_package(name, file, directory)
    say_what_is_next(
        f"{file} is copied to {written}; remove it once that is installed",
        written,
        new_plugin.commands_of_package(name),
    )

"""`tpux config`: validate and show configs."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tpux import env
from tpux.cli.common import Group, Json, Overrides, echo, emit, new_app, say
from tpux.cli.program_words import ProgramWords
from tpux.errors import ConfigError, Exit, NoSuchJobError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpux.config.resolved import Loaded
    from tpux.model.json import JsonValue

app = new_app()

File = Annotated[Path, typer.Argument(metavar="FILE", help="The config.", show_default=False)]


@app.callback(cls=Group)
def _group() -> None:
    """Validate and show configs."""


@app.command(cls=ProgramWords, epilog="Example: tpux config check train.yaml")
def check(file: File, overrides: Overrides = None, json: Json = False) -> None:
    """Validate a config and report every error; creates nothing."""
    try:
        loaded = _load(file, overrides)
    except ConfigError as error:
        if not json:
            raise
        emit({"ok": False, "file": str(file), "problems": [asdict(problem) for problem in error.problems]})
        raise typer.Exit(Exit.USAGE) from error
    if json:
        warnings = [asdict(warning) for warning in loaded.warnings]
        emit({"ok": True, "file": str(file), **_facts(loaded), "warnings": warnings})
        return
    _warn(loaded)
    workers = "known only to the allocator" if loaded.workers is None else loaded.workers
    echo(f"ok  file: {file}")
    echo(f"ok  workers: {workers}, by {loaded.allocator}")
    echo(f"ok  modules: {', '.join(loaded.modules) or 'none'}")
    echo(f"ok  environment: {loaded.environment or 'none, the command runs directly'}")


@app.command(
    cls=ProgramWords,
    epilog="Example: tpux config show train.yaml tpu.accelerator=v4-16\n\nExample: tpux config show 12 --origin",
)
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE|JOB", help="The config, or a job.", show_default=False)],
    overrides: Overrides = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value is from: file, line.")] = False,
    json: Json = False,
) -> None:
    """Print a config, or the one of a job, with secrets masked."""
    job = "000000"
    if file.exists():
        loaded = _load(file, overrides)
    else:
        job, loaded = _of_job(file, overrides)
    _warn(loaded)
    shown = loaded.display(job)
    if origin:
        from tpux.config.settings import leaves

        found = {".".join(path): (value, loaded.document.span(*path).location) for path, value in leaves(shown)}
        _print_origins(found, json=json)
        return
    if json:
        emit(shown)
        return
    from tpux.config.yaml import write

    write(shown, sys.stdout)


Key = Annotated[str, typer.Argument(metavar="KEY", help="Such as defaults.tpu.zone or aliases.lr.")]


@app.command("set", epilog="Example: tpux config set defaults.tpu.zone us-central2-b")
def set_(key: Key, value: Annotated[str, typer.Argument(help="The value, as YAML.")]) -> None:
    """Change a setting in your own file."""
    say(f"{key} is set in {_change(key, value)}")


@app.command(epilog="Example: tpux config unset defaults.tpu.zone")
def unset(key: Key) -> None:
    """Remove a setting from your own file."""
    say(f"{key} is removed from {_change(key, None)}")


def _change(key: str, value: str | None) -> Path:
    from tpux.config import settings
    from tpux.store import files

    path, content = settings.changed(key, value)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write_atomic(path, content)
    return path


@app.command(epilog="Example: tpux config get defaults.tpu.zone")
def get(key: Key) -> None:
    """Print the value of a setting."""
    from tpux.config import settings

    found = settings.values(settings.read_files())
    if key not in found:
        raise UsageError(f"{key} is not set", hint="tpux config list shows what is")
    echo(_text(found[key][0]))


@app.command("list", epilog="Example: tpux config list --origin")
def list_(
    origin: Annotated[bool, typer.Option("--origin", help="Show the file and the line of each value.")] = False,
    json: Json = False,
) -> None:
    """Print the settings: defaults, aliases and display."""
    from tpux.config import settings

    found = settings.values(settings.read_files())
    if not found and not json:
        say(
            f"no settings in {' or '.join(map(str, env.settings_files()))}; for example tpux config set aliases.lr a.lr"
        )
    _print_origins(found, json=json, shown=origin)


def _print_origins(found: Mapping[str, tuple[JsonValue, str]], *, json: bool, shown: bool = True) -> None:
    """Print values, each with its position."""
    if json:
        emit({key: {"value": value, "origin": where} for key, (value, where) in found.items()})
        return
    for key, (value, where) in sorted(found.items()):
        echo(f"{key}={_text(value)}" + (f"  {where}" if shown else ""))


def _text(value: JsonValue) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


def _of_job(word: Path, overrides: list[str] | None) -> tuple[str, Loaded]:
    """Return a job's id and the config that it was given, as the settings and the overrides were then.

    Raises:
        UsageError: there is neither such a file nor such a job.
    """
    from tpux.lifecycle.change_config import load_stored
    from tpux.plugin.manager import Plugins
    from tpux.store import Store, files

    try:
        record = Store().find(str(word), note=say)
    except NoSuchJobError as error:
        raise UsageError(f"there is no file and no job {word}", hint="tpux list --all shows your jobs") from error
    secrets = (files.load(record.config_directory / "resolved.json") or {}).get("secrets")
    names = map(str, secrets) if isinstance(secrets, list) else ()
    return record.id, load_stored(record, overrides or [], Plugins(), {**os.environ, **dict.fromkeys(names, "-")})


def _load(file: Path, overrides: list[str] | None) -> Loaded:
    from tpux import config
    from tpux.plugin.manager import Plugins

    return config.load(file, overrides or [], plugins=Plugins())


def _facts(loaded: Loaded) -> dict[str, str | int | list[str] | None]:
    return {
        "allocator": loaded.allocator,
        "workers": loaded.workers,
        "modules": list(loaded.modules),
        "environment": loaded.environment,
    }


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        say(f"warning: {warning}")

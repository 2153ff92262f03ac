"""`tpux create`: create a job from a config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpux.cli import completion
from tpux.cli.common import Json, Overrides, emit, find_job, new_app, say, short_id
from tpux.cli.program_words import SEPARATOR, ProgramWords
from tpux.errors import UsageError

app = new_app()

Config = Annotated[Path | None, typer.Argument(metavar="CONFIG", help="The job's config.", show_default=False)]
On = Annotated[
    str | None,
    typer.Option(
        metavar="JOB",
        help="Take over the machines of this job, which has ended and still holds them.",
        autocompletion=completion.jobs,
        show_default=False,
    ),
]
Tpu = Annotated[
    str | None,
    typer.Option(
        metavar="TPU",
        help="Use this TPU of the pool: same as tpu.allocation_mode=pool tpu.name=TPU.",
        show_default=False,
    ),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Same as CONFIG (for jobman).", show_default=False)]


@app.command(cls=ProgramWords, epilog="Example: tpux create train.yaml tpu.accelerator=v4-16")
def create(
    config: Config = None,
    overrides: Overrides = None,
    config_option: ConfigOption = None,
    on: On = None,
    tpu: Tpu = None,
    json: Json = False,
) -> None:
    """Create a job and print its id; the supervisor runs it in the background."""
    from tpux.lifecycle.create import create_job
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux.supervisor import client

    store = Store()
    giver = find_job(store, on) if on else None
    plugins = Plugins(client.plugins_of_supervisor(store))
    record = create_job(store, *config_of(config, config_option, overrides, tpu), warn=say, plugins=plugins, on=giver)
    client.notify(store)
    name = record.refresh().name
    if json:
        emit({"id": record.id, "name": name, "directory": str(record.directory)})
    else:
        shown = short_id(record.id)
        typer.echo(shown)
        say(f"created job {shown} ({name}); follow it: tpux logs -f {shown}")


def config_of(
    config: Path | None, option: Path | None, overrides: list[str] | None, tpu: str | None
) -> tuple[Path, list[str]]:
    """Return the config's path and the overrides, whether the path came as CONFIG or as --config.

    The TPU of --tpu becomes overrides as well, before the others.

    Raises:
        UsageError: no config was given.
    """
    words, named = list(overrides or []), ["tpu.allocation_mode=pool", f"tpu.name={tpu}"] if tpu else []
    if option is not None:
        if config is not None:
            words.insert(0, str(config))  # after --config, every argument is an override
        return option, [*named, *words]
    if str(config) == SEPARATOR:  # before a file whose name begins with a dash
        config, words = Path(words[0]) if words else None, words[1:]
    if config is None:
        raise UsageError("missing argument CONFIG", hint="tpux run train.yaml")
    return config, [*named, *words]

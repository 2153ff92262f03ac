"""`tpux create`: a job from a config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tpux.cli.common import Json, emit, new_app, say
from tpux.errors import UsageError

app = new_app()

Config = Annotated[Path | None, typer.Argument(metavar="CONFIG", help="The job's config.", show_default=False)]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="The same, as jobman has it.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="What to change in it: tpu.accelerator=v4-16.")
]


@app.command(epilog="Example: tpux create train.yaml tpu.accelerator=v4-16")
def create(
    config: Config = None,
    overrides: Overrides = None,
    config_option: ConfigOption = None,
    json: Json = False,
) -> None:
    """Create a job and print its id; the supervisor runs it in the background."""
    from tpux.lifecycle.create import create_job
    from tpux.store import Store
    from tpux.supervisor import client

    store = Store()
    record = create_job(store, *config_of(config, config_option, overrides), warn=say)
    client.notify(store)
    job = record.directory.name
    if json:
        emit({"id": job, "name": record.refresh().name, "directory": str(record.directory)})
    else:
        typer.echo(job)
        say(f"job {job} is created: `tpux logs -f {job}` follows it")


def config_of(config: Path | None, option: Path | None, overrides: list[str] | None) -> tuple[Path, list[str]]:
    """The config's path and the overrides, however they were given.

    Raises:
        UsageError: no config was named, or two.
    """
    words = list(overrides or [])
    if option is not None:
        if config is not None:
            words.insert(0, str(config))  # after --config every word is an override
        return option, words
    if config is None:
        raise UsageError("which config?", hint="tpux run train.yaml")
    return config, words

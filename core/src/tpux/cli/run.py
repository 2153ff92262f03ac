"""`tpux run`: create a job and follow it to its end."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from tpux.cli.common import Overrides, find_job, new_app, say, short_id
from tpux.cli.create import Config, ConfigOption, On, Tpu, config_of
from tpux.cli.create import create as create_only
from tpux.cli.program_words import ProgramWords

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.state import State

app = new_app()


@app.command(cls=ProgramWords, epilog="Example: tpux run train.yaml tpu.accelerator=v4-16 lr=3e-4 -- --verbose")
def run(
    config: Config = None,
    overrides: Overrides = None,
    config_option: ConfigOption = None,
    on: On = None,
    tpu: Tpu = None,
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Do not follow the job: same as tpux create.")] = False,
) -> None:
    """Create a job and follow it to its end; Ctrl-C leaves the job running.

    With --on JOB, it takes over the machines of a job that has ended and still holds them, instead of requesting its
    own: the config must describe the same machines.

    Exit codes: 0 the job succeeded, 100 it failed, 103 it was stopped.
    """
    from tpux.cli.follow import follow
    from tpux.lifecycle.create import create_job
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux.supervisor import client

    if detach:
        create_only(config, overrides, config_option, on, tpu)
        return
    store = Store()
    giver = find_job(store, on) if on else None
    plugins = Plugins(client.plugins_of_supervisor(store))
    record = create_job(store, *config_of(config, config_option, overrides, tpu), warn=say, plugins=plugins, on=giver)
    client.notify(store)
    say(f"created job {short_id(record.id)} ({record.refresh().name})")
    _suggest_install(store, record.state)
    raise typer.Exit(follow(store, record))


def _suggest_install(store: Store, job: State) -> None:
    """Suggest `tpux supervisor install` once, for a job whose machines survive a reboot of this one."""
    from tpux.supervisor import client
    from tpux.supervisor.files import Files

    files = Files(store.supervisor)
    if job.allocator == "local" or files.suggested.exists() or client.find_installed(store):
        return
    with suppress(OSError):
        files.suggested.touch()
        say("after a reboot or a crash here, jobs continue with the next tpux command; `tpux supervisor install` lets")
        say("systemd or cron start the supervisor instead")

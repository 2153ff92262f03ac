"""`tpux resume`: start jobs again from their last checkpoint."""

from __future__ import annotations

from tpux.cli.common import OfName, OfState, OfTag, new_app
from tpux.cli.program_words import ProgramWords
from tpux.cli.restart_request import ChangedConfig, RestartArgs, Sync, request_restart

app = new_app()


@app.command(
    cls=ProgramWords, epilog="Example: tpux resume 12   or: tpux resume 12 --config fixed.yaml command.grace_period=1m"
)
def resume(
    jobs: RestartArgs = None,
    state: OfState = None,
    name: OfName = None,
    tag: OfTag = None,
    config: ChangedConfig = None,
    sync: Sync = False,
) -> None:
    """Start stopped or failed jobs again from their last checkpoint.

    A job that still holds its machines continues on them; otherwise it requests new ones. One job can be given
    another config (--config), or other values of its own (key=value). It runs the code and the files that were copied
    when it was created: --sync takes them as they are now.
    """
    request_restart("resume", jobs or [], state, name, config, sync=sync, tags=tag)

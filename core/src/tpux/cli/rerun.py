"""`tpux rerun`: start jobs again from scratch."""

from __future__ import annotations

from tpux.cli.common import OfName, OfState, OfTag, new_app
from tpux.cli.program_words import ProgramWords
from tpux.cli.restart_request import ChangedConfig, RestartArgs, Sync, request_restart

app = new_app()


@app.command(cls=ProgramWords, epilog="Example: tpux rerun 12 lr=0.01   or: tpux rerun --state failed --name 'lr-*'")
def rerun(
    jobs: RestartArgs = None,
    state: OfState = None,
    name: OfName = None,
    tag: OfTag = None,
    config: ChangedConfig = None,
    sync: Sync = False,
) -> None:
    """Start jobs that have ended again from scratch, with TPUX_RESUME=0 and stage 0.

    One job can be given another config (--config), or other values of its own (key=value). It runs the code and the
    files that were copied when it was created: --sync takes them as they are now.
    """
    request_restart("rerun", jobs or [], state, name, config, sync=sync, tags=tag)

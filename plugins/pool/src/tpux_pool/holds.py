"""`tpux hold` (Machines): keep a TPU of the pool for yourself, for a while."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tpux import UsageError, api
from tpux.api import machines
from tpux.api.options import DURATION
from tpux_gcp.lookup import open_api
from tpux_pool.shared import SharedTpu, lease_names, list_shared

app = api.new_app()
LONGEST = 7 * 86400.0
Tpu = Annotated[str, typer.Argument(metavar="TPU", help="Alias or name of a TPU of the pool.")]
Project = Annotated[str | None, typer.Option(help="Google Cloud project. Default: gcloud's.")]


@app.command(epilog="Example: tpux hold v4-32-p2 --for 30m --note debugging")
def hold(
    tpu: Tpu,
    seconds: Annotated[
        float,
        typer.Option("--for", click_type=DURATION, show_default="30m", help="For how long, such as 30m; at most 7d."),
    ] = 1800.0,
    note: Annotated[str, typer.Option(help="Why, for other people.")] = "",
    project: Project = None,
) -> None:
    """Keep other users' jobs from a TPU until an end. Typed again, it changes the end.

    A job of yours that names the TPU (tpu.name) takes it over. A hold ends by itself; `tpux release` ends it before.
    """
    if not 0 < seconds <= LONGEST:
        raise UsageError(f"--for {seconds:g}s: a hold lasts more than 0 and at most 7 days")
    found = find_one(tpu, project)
    until = time.time() + seconds / machines.clock_rate()
    use = found.use
    if use is not None and (use.job or use.store):
        raise UsageError(f"{found.called} is {use}", hint="tpux find --free")
    if machines.hold(lease_names(found.found), until=until, note=note[:200]):
        now = find_one(tpu, project).use
        raise UsageError(f"{found.called} is {now or use or 'in use'}", hint="tpux find --free")
    api.say(f"{found.called} is held until {time.strftime('%Y-%m-%d %H:%M', time.localtime(until))}")


def find_one(word: str, project: str | None) -> SharedTpu:
    """Return the TPU of the pool with an alias or a name.

    Raises:
        UsageError: there is none, or more than one.
    """
    every = list_shared(open_api(project))
    found = [tpu for tpu in every if tpu.is_called(word)]
    if not found:
        raise UsageError(f"the pool has no TPU {word}", hint=f"tpux find, or tpux tpu register {word}")
    if len(found) > 1:
        raise UsageError(f"several TPUs of the pool are called {word}", hint="tpux tpu alias NAME NEW")
    return found[0]

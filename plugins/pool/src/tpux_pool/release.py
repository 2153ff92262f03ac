"""`tpux release` (Machines): end your hold of a TPU of the pool."""

from __future__ import annotations

from tpux import UsageError, api
from tpux.api import machines
from tpux_pool.holds import Project, Tpu, find_one
from tpux_pool.shared import lease_names

app = api.new_app()


@app.command(epilog="Example: tpux release v4-32-p2")
def release(tpu: Tpu, project: Project = None) -> None:
    """End your hold of a TPU. `tpux stop JOB --release` ends what a job holds."""
    found = find_one(tpu, project)
    if not machines.end_hold(lease_names(found.found)):
        use = found.use
        hint = f"tpux stop {int(use.job)} --release" if use and use.job and not use.store else "tpux find"
        raise UsageError(f"you do not hold {found.called}{f': it is {use}' if use else ''}", hint=hint)
    api.say(f"{found.called} is free")

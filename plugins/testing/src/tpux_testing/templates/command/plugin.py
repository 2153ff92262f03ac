"""`tpux sample` (Watch): count your jobs by state."""

from __future__ import annotations

from collections import Counter

from tpux import api
from tpux.api.options import Json
from tpux.api.text import print_table

app = api.new_app()


@app.command(epilog="Example: tpux sample\n\nExample: tpux sample --json")
def count(json: Json = False) -> None:
    """Count your jobs by state."""
    states = Counter(job.state for job in api.jobs())
    if json:
        api.emit(states)
    elif states:
        print_table({"jobs": [str(number) for number in states.values()], "state": [*states]})
    else:
        api.say("no jobs")

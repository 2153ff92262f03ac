"""Clocks that jump, stand still, or sleep while a job runs, in all processes at once."""

from __future__ import annotations

import time

import pytest

from tests.tiers import representative

HOUR = 3600
RUNS = """
job: {{max_restarts: {{program: 1}}, stalled_after: 5m}}
watch: {{lost_after: 2m}}
command: {{cmd: 'echo up $TPUX_ATTEMPT; until [ -e {go}$TPUX_ATTEMPT ]; do sleep 0.1; done; [ $TPUX_ATTEMPT = 2 ]'}}
"""


@pytest.mark.system
@pytest.mark.parametrize(
    "clocks",
    representative(
        [
            pytest.param({"forward": -HOUR}, id="set back"),
            pytest.param({"forward": 10 * HOUR}, id="set forward"),
            pytest.param({"frozen": 1_800_000_000}, id="standing still"),
            pytest.param({"suspended": 10 * HOUR}, id="suspended"),
        ]
    ),
)
def test_a_job_goes_on(tpux, faults, clocks):
    """Its running attempt is not taken for lost or stalled, its restart is not put off, and another job runs."""
    tpux.env["TPUX_CLOCK_RATE"] = "10"  # of the delay before the restart
    go = tpux.work / "go"
    job = tpux.create(RUNS.format(go=go))
    tpux.until(lambda: tpux.output_so_far(job) == b"up 1\n")
    pid = tpux.supervisor()
    faults.set_clocks(**clocks)
    tpux("run", tpux.config("command: {cmd: echo second}\n", "second.yaml"))
    created = tpux.events("000002", "created")[0]["at"]
    assert abs(created - time.time()) > HOUR / 2, "the clocks of the processes are changed"
    assert tpux.show(job)["attempt"] == 1, "what ran before the clock was changed still runs"
    (tpux.work / "go1").touch()
    tpux.until(lambda: tpux.output_so_far(job, attempt=2) == b"up 2\n", "for the restart")
    (tpux.work / "go2").touch()
    tpux("wait", job)
    shown = tpux.show(job)
    assert (shown["state"], shown["attempt"]) == ("succeeded", 2)
    assert [event["failure"]["kind"] for event in tpux.events(job, "attempt-ended") if event["failure"]] == ["program"]
    assert tpux.supervisor() in {pid, None}

"""`tpux ack`: jobs that wait for machines, or for their backoff, look again now."""

from __future__ import annotations

from tpux_testing import command_contract

SCARCE = """
    from pathlib import Path

    from tpux import Denied, Failure, Waiting, hookimpl

    @hookimpl
    def provision(request):
        asked = request.directory / "asked"
        with asked.open("a") as file:
            file.write("x")
        return Waiting("no capacity", 3600.0)
"""
FAILS = "job: {rule: rerun, max_restarts: {program: 5}}\ncommand: {cmd: 'sleep 0.1; exit 3'}\n"


def test_a_job_that_waits_for_machines_asks_for_them_now(tpux):
    tpux.plugin("tpux-scarce", SCARCE, entries="scarce = tpux_scarce")
    job = tpux.create("tpu: {allocation_mode: scarce}\ncommand: {cmd: 'true'}\n")

    def asked() -> int:
        return sum(path.stat().st_size for path in tpux.home.glob(f"jobs/*/{job}/machines/asked"))

    tpux.until(lambda: asked() == 1)
    assert f"looking again: job {int(job)}" in tpux("ack").stderr
    tpux.until(lambda: asked() == 2)
    assert tpux.json("show", job)["state"] == "provisioning"


def test_a_backoff_ends_and_the_job_starts_as_it_was_to(tpux):
    job = tpux.create(FAILS)
    tpux.until_state(job, "recovering")
    assert tpux.json("show", job)["attempt"] == 1
    tpux("ack", job)
    tpux.until(lambda: tpux.json("show", job)["attempt"] == 2)
    accepted = tpux.events(job, "request-accepted")
    assert [(event["action"], event["backoff_skipped"]) for event in accepted] == [("rerun", True)]
    tpux("stop", job)
    assert f"job {int(job)} is stopped: it waits for no machines" in tpux("ack", job, code=2).stderr
    assert "no job waits" in tpux("ack").stderr


def test_the_command():
    command_contract("ack", [], wrong=[["none"]])

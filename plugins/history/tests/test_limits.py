"""The plugin `limits`: it warns at 80 %, stops and releases at 100 %, and lets queued jobs wait."""

from __future__ import annotations

import getpass
import json
import time

import pytest
from tests.test_info import PAID

from tpux_testing import section_contract

CONFIG = """
tpu: {allocation_mode: paid, accelerator: v4-16, pricing: spot}
watch: {resources_every: 1s}
command:
  cmd: |
    trap 'for i in 1 2 3 4 5 6 7 8; do sleep 0.2; done; echo saved; exit 0' TERM
    echo up
    while :; do sleep 0.1; done
  grace_period: 0s
"""


@pytest.fixture
def paid(tpux):
    tpux.plugin("tpux-paid", PAID, entries="paid = tpux_paid")
    return tpux


def events(tpux, job):
    return [json.loads(line) for line in next(tpux.home.glob(f"jobs/*/{job}/events.jsonl")).read_text().splitlines()]


def test_the_section():
    section_contract("limits")


def test_a_job_that_reaches_its_limit_saves_its_state_and_gives_its_machines_up(paid):
    job = paid.create(CONFIG, "limits.hours=0.001", "limits.grace=30s")
    paid("wait", job, code=103)
    shown = paid.json("show", job)
    assert shown["why"] == "stopped by limits.hours: 0.00 of 0.001 machine hours used"
    assert "saved" in paid.output(job).decode().splitlines(), "it gets limits.grace, not command.grace_period"
    paid.until(lambda: any(event["type"] == "released" for event in events(paid, job)))


def spend(tpux, hours):
    """Write to the ledger what a job has used whose record was deleted."""
    user = tpux.env.get("TPUX_USER") or getpass.getuser()
    tpux.home.mkdir(exist_ok=True)
    held = {"name": "old", "accelerator": "v4-16", "pricing": "spot", "zone": "", "slices": int(hours * 100)}
    line = {**held, "job": "000900", "created_at": hours, "start": time.time() - 36, "end": time.time()}
    with (tpux.home / f"ledger-{user}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_the_limit_of_a_month_counts_all_jobs_of_the_user(paid):
    """It warns at 80 %; at 100 % jobs that run are stopped, and others wait until the limit is raised."""
    limit = "limits.month.hours=10"
    first = paid.create(CONFIG, limit, "limits.grace=1s")
    paid.until_state(first, "running")
    spend(paid, 8.5)
    paid.until(lambda: "limits.month.hours: 8.5" in paid.json("show", first)["why"])
    assert paid.json("show", first)["state"] == "running"
    spend(paid, 2)
    paid("wait", first, code=103)
    assert "stopped by limits.month.hours: 10.5" in paid.json("show", first)["why"]
    assert [event["kind"] for event in events(paid, first) if event["type"] == "warned"] == ["limits.month.hours"]
    second = paid.create(CONFIG, limit)
    paid.until(lambda: paid.json("show", second)["why"].startswith("waits for the next month: limits.month.hours"))
    assert paid.json("show", second)["state"] == "pending"
    paid("stop", second)
    paid("resume", second, "limits.month.hours=1000")
    paid.until_state(second, "running")
    paid("delete", second, "-y")


def test_a_limit_that_is_reached_during_set_up_ends_it(paid):
    """Nothing happens during a long set-up, of which there would be an event."""
    paid.env["TPUX_CLOCK_RATE"] = "30"
    (paid.work / "slow.sh").write_text("sleep 300\n")
    job = paid.create(CONFIG + "script: {path: slow.sh}\nsetup: {modules: [script]}\n", "limits.hours=0.05")
    paid.until_state(job, "setting-up")
    paid("wait", job, code=103)
    assert paid.json("show", job)["why"].startswith("stopped by limits.hours: ")


def test_a_limit_of_the_cost_needs_the_price_of_the_type(paid):
    error = paid("create", paid.config(CONFIG), "limits.cost=10", code=2).stderr
    assert "no price is known of v4-16 spot" in error
    assert paid.json("list") == []
    (paid.home / "prices.yaml").write_text("v4-16 ondemand: 4\n")
    paid("create", paid.config(CONFIG), "limits.month.cost=10", code=2)
    (paid.home / "prices.yaml").write_text("v4-16 spot: 36000\n")  # 10 a second
    job = paid.create(CONFIG, "limits.cost=30", "limits.grace=1s")
    began = time.monotonic()
    paid("wait", job, code=103)
    assert time.monotonic() - began > 1
    assert "stopped by limits.cost: " in paid.json("show", job)["why"]


def test_only_jobs_with_a_limit_of_the_month_wait_and_each_for_its_own(paid):
    """Neither a deleted job with a limit nor one with a greater one changes what others wait for."""
    unlimited = paid.create(CONFIG)
    spend(paid, 2)
    lower = paid.create(CONFIG, "limits.month.hours=1")
    paid.until(lambda: paid.json("show", lower)["why"].startswith("waits for the next month: limits.month.hours: 2"))
    assert f"tpux stop {int(lower)}; tpux resume {int(lower)} limits.month.hours=" in paid("show", lower).stdout
    higher, later = paid.create(CONFIG, "limits.month.hours=1000"), paid.create(CONFIG)
    for job in (higher, unlimited, later):
        paid.until_state(job, "running")
    paid("restart", higher, "-y")
    paid.until_state(higher, "running")
    assert paid.json("show", lower)["state"] == "pending"
    assert not [event for event in events(paid, lower) if event["type"] == "allocation-requested"]
    for job in (lower, higher, unlimited, later):
        paid("delete", job, "-y", "--force")


def test_a_mistake_in_the_prices_does_not_lift_the_limit_of_the_hours(paid):
    paid.home.mkdir(exist_ok=True)
    (paid.home / "prices.yaml").write_text("v4-16 spot: 1\n")
    job = paid.create(CONFIG, "limits.cost=1000", "limits.month.hours=10", "limits.grace=1s")
    paid.until_state(job, "running")
    (paid.home / "prices.yaml").write_text("v4-16 spot: much\n")
    paid.until(lambda: "prices.yaml" in paid.json("show", job)["why"])
    spend(paid, 20)
    paid("wait", job, code=103)
    assert "stopped by limits.month.hours" in paid.json("show", job)["why"]


def test_a_limit_of_the_cost_needs_the_type_of_the_machines(paid):
    config = "tpu: {allocation_mode: paid}\ncommand: {cmd: 'true'}\n"
    error = paid("create", paid.config(config), "limits.cost=10", code=2).stderr
    assert "limits.cost needs tpu.accelerator" in error
    assert paid.json("list") == []


def test_machines_that_cost_nothing_are_not_stopped(paid):
    """They are not counted either."""
    job = paid.create(CONFIG.replace("tpu: {allocation_mode: paid, accelerator: v4-16, pricing: spot}", LOCAL))
    paid.until_state(job, "running")
    spend(paid, 20)
    paid.until(lambda: "limits.month.hours: 2" in paid.json("show", job)["why"])
    paid.until(lambda: len(list(paid.home.glob("pauses/*/limits.month.hours.json"))) == 1)
    assert paid.json("show", job)["state"] == "running"
    assert not [event for event in events(paid, job) if event["type"] == "request-accepted"]
    paid("delete", job, "-y", "--force")


LOCAL = "tpu: {allocation_mode: local}\nlimits: {month: {hours: 10}}"

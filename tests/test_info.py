"""`tpux info`: which machines jobs hold and wait for, until when, and at what price."""

from __future__ import annotations

import re

import pytest

from tests.test_terminal import Terminal

PAID = """
    from dataclasses import replace

    import tpux_local
    from tpux import Waiting, hookimpl

    config_section, tpu_section = tpux_local.config_section, tpux_local.tpu_section
    inspect, release = tpux_local.inspect, tpux_local.release

    @hookimpl
    def provision(request):
        if request.tpu.accelerator == "v6e-8":
            return Waiting("no capacity", 0.5)
        answer = tpux_local.provision(request)
        machines = replace(answer.allocation, costs=True, pricing="spot", zone="us-central2-b")
        return replace(answer, allocation=machines)
"""
TPU = "tpu: {allocation_mode: paid, accelerator: v4-16}\n"
LOOP = TPU + "command: {cmd: 'echo up; exec sleep 300', grace_period: 1s}\njob: {name: loop}\n"
ENDS = TPU + "command: {cmd: 'false'}\njob: {name: ends}\n"


@pytest.fixture
def paid(tpux):
    tpux.plugin("tpux-paid", PAID, entries="paid = tpux_paid")
    return tpux


def running(tpux, *words):
    job = tpux.create(LOOP, *words)
    tpux.until_state(job, "running")
    return job


def rows(tpux, *words):
    """Return the cells of the table by its heads, and the last line."""
    head, *lines, last = tpux("info", *words).stdout.splitlines()
    heads = re.split(" {2,}", head)
    return [dict(zip(heads, re.split(" {2,}", line), strict=True)) for line in lines], last


def test_who_holds_what_until_when_and_at_what_price(paid):
    first, second = running(paid), running(paid, "tpu.node_count=2")
    kept = paid.create(ENDS, "tpu.keep_on_failure=1h")
    paid("wait", kept, code=100)
    waiting = paid.create(LOOP, "tpu.accelerator=v6e-8", "tpu.pricing=spot", "job.name=big")
    pending = paid.create(ENDS, f"job.after=[{int(waiting)}]")
    paid.until_state(waiting, "provisioning")
    (paid.home / "prices.yaml").write_text("v4-16 spot: 4\nv4-16 spot us-central2-b: 9.5\n")
    found, last = rows(paid)
    released = found[1].pop("RELEASED")
    assert re.fullmatch(r"in (1h|59m|60m)", released)
    zone = {"TYPE": "v4-16 spot", "ZONE": "us-central2-b"}
    common = {"SLICES": "3", "WORKERS": "6", "JOBS": f"{int(first)} loop, {int(second)} loop"}
    assert found == [
        {**zone, "STATE": "running", **common, "RELEASED": "-", "PER HOUR": "28.50"},
        {**zone, "STATE": "idle", "SLICES": "1", "WORKERS": "2", "JOBS": f"{int(kept)} ends", "PER HOUR": "9.50"},
        {
            "TYPE": "v6e-8 spot",
            "ZONE": "-",
            "STATE": "queued",
            "SLICES": "1",
            "WORKERS": found[2]["WORKERS"],
            "JOBS": f"{int(waiting)} big",
            "RELEASED": "-",
            "PER HOUR": "-",
        },
    ]
    assert last == "held: 8 workers (6 running, 2 idle); jobs: 1 queued, 1 pending; 38.00 per hour"
    shown = paid.json("info")
    assert shown["total"] == {
        "workers": {"running": 6, "idle": 2},
        "holding_jobs": 3,
        "queued_jobs": 1,
        "pending_jobs": 1,
        "price_per_hour": 38.0,
        "without_price": [],
    }
    by_job = {one["job"]["id"]: one for one in shown["machines"]}
    assert pending not in by_job
    assert [by_job[job]["price_per_hour"] for job in (first, second, kept, waiting)] == [9.5, 19.0, 9.5, 0.0]
    assert by_job[kept]["release_at"] == paid.show(kept)["held_until"]
    assert by_job[kept]["job"]["state"] == "failed"
    assert by_job[waiting]["job"]["why"] == "no capacity"
    for width in (80, 50):
        terminal = Terminal(paid, "info", size=(width, 24))
        assert terminal.end() == 0
        assert [line.split()[0] for line in terminal.lines][:5] == ["TYPE", "v4-16", "v4-16", "v6e-8", "held:"]
        assert "28.50" in terminal.lines[1], "a row takes one line"
        ids = f"{int(first)} loop, {int(second)} loop" if width == 80 else f"{int(first)}, {int(second)} "
        assert ids in terminal.lines[1], "each job is named"
        words = " ".join(terminal.lines[4:])
        assert words == "held: 8 workers (6 running, 2 idle); jobs: 1 queued, 1 pending; 38.00 per hour", (
            "between words"
        )
    paid("stop", kept, "--keep")
    assert rows(paid)[0][1]["RELEASED"] == "by hand"


def test_a_price_that_the_table_lacks_is_unknown_and_not_0(paid):
    running(paid)
    found, last = rows(paid)
    assert "PER HOUR" not in found[0], "there is no table"
    assert last == "held: 2 workers (2 running); price per hour unknown (prices.yaml has none for v4-16 spot)"
    (paid.work / "p.yaml").write_text("v4-32: 7\n")
    found, last = rows(paid, "--prices", "p.yaml")
    assert found[0]["PER HOUR"] == "unknown"
    assert "unknown (p.yaml has none for v4-16 spot)" in last
    total = paid.json("info", "--prices", "p.yaml")["total"]
    assert (total["price_per_hour"], total["without_price"]) == (None, ["v4-16 spot"])
    (paid.work / "p.yaml").write_text("v4-16: 7\n")
    assert rows(paid, "--prices", "p.yaml")[1].endswith("; 7.00 per hour"), "whatever its pricing"


def test_workers_on_this_machine_cost_nothing_and_users_are_told_apart(tpux):
    config = "command: {cmd: 'exec sleep 300', grace_period: 1s}\njob: {name: here}\n"
    tpux.until_state(tpux.create(config), "running")
    found, last = rows(tpux)
    assert found == [{"TYPE": "local", "STATE": "running", "SLICES": "1", "WORKERS": "1", "JOBS": "1 here"}]
    assert last == "held: 1 worker (1 running); 0.00 per hour"
    own = tpux.json("info", "--all-users")["machines"][0]["job"]["user"]
    assert rows(tpux, "--all-users")[0][0]["USER"] == own
    tpux.env["TPUX_USER"] = "somebody"
    assert tpux("info").stdout == ""
    assert rows(tpux, "--all-users")[0][0]["USER"] == own
    tpux.env["TPUX_USER"] = own
    tpux("stop", "1", "--release")
    tpux.until_done()
    done = tpux("info")
    assert (done.stdout, done.stderr) == ("", "tpux: no job holds machines or waits for them\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["info", "--al-users"], "no such option '--al-users'"),
        (["info", "7"], "unexpected extra argument"),
        (["info", "--prices", "none.yaml"], "none.yaml: file not found"),
        (["inf"], "did you mean 'info'?"),
        (["sinfo"], "tpux info shows who has which machines"),
    ],
)
def test_typed_wrong(runner, words, said):
    done = runner(*words, code=2)
    assert said in done.stderr
    assert done.stdout == ""


def test_a_table_that_is_none_says_where(runner):
    (runner.work / "p.yaml").write_text("v4-8: cheap\n")
    assert "p.yaml:1:7: v4-8 must be a number" in runner("info", "--prices", "p.yaml", code=2).stderr

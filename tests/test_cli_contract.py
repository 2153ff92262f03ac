"""The interface for scripts: JSON keys, exit codes, stdout and stderr, and confirmation of destructive commands."""

from __future__ import annotations

import json
import re

import pytest

SUCCEEDS = "job: {name: first}\ntpu: {accelerator: v4-16}\ncommand: {cmd: echo fine}\n"
LISTED = {
    "id": "000001",
    "name": "first",
    "state": "succeeded",
    "accelerator": "v4-16",
    "zone": None,
    "workers": 2,
    "attempt": 1,
    "stage": 0,
}
STATES = {
    "pending",
    "provisioning",
    "setting-up",
    "running",
    "recovering",
    "stopping",
    "stopped",
    "succeeded",
    "failed",
}


def test_json_keys(tpux):
    created = tpux.json("create", tpux.config(SUCCEEDS))
    assert created["id"] == "000001"
    status = tpux.json("supervisor", "status")
    assert status["pid"] is None or isinstance(status["pid"], int)
    assert tpux.json("list")[0]["state"] in STATES
    tpux("wait", "1")
    [row] = tpux.json("list")
    assert LISTED.items() <= row.items()
    assert {"user", "created_at"} <= row.keys()
    tpux.until(lambda: tpux.show("1")["workers"] == [], "for the release, which `tpux wait` does not wait for")
    shown = tpux.show("1")
    assert {key: value for key, value in LISTED.items() if key != "workers"}.items() <= shown.items()
    assert shown["failure"] is None
    assert [event["to"] for event in shown["events"] if event["type"] == "state-changed"] == [
        "provisioning",
        "setting-up",
        "running",
        "succeeded",
    ]


def test_json_of_a_failure(tpux):
    job = tpux.create("tpu: {accelerator: v4-16}\ncommand: {cmd: 'echo why; exit $((TPUX_WORKER * 5))'}\n")
    tpux("wait", job, code=100)
    shown = tpux.show(job)
    assert {"kind": "program", "worker": 1, "evidence": "exit code 5: why"}.items() <= shown["failure"].items()
    assert shown["failure"]["hint"]
    assert [(worker["index"], worker["exit_code"]) for worker in shown["workers"]] == [(0, 0), (1, 5)]
    printed = tpux("show", job).stdout
    assert printed.count("failure:      program on worker 1: exit code 5: why\n") == 1
    assert printed.count("why\n") == 1, "and not again in the state and in the events"
    assert "attempt 1 ended: exit code 5 on worker 1\n" in printed
    ended = tpux("history", job).stdout
    assert "attempt 1 ended: exit code 5 on worker 1: why\n" in ended
    assert "hint:" in printed


def test_exit_codes(tpux):
    tpux("run", tpux.config("command: {cmd: 'true'}\n"), code=0)
    tpux("run", tpux.config("command: {cmd: 'false'}\n"), code=100)
    slow = tpux.config("command: {cmd: sleep 1000, grace_period: 1s}\n")
    run = tpux.popen("run", slow)
    tpux.until(lambda: len(tpux.json("list")) == 3 and tpux.show("3")["state"] == "running")
    tpux("cancel", "3", code=0)
    assert run.wait(timeout=60) == 103
    for words in (["run"], ["nonsense"], ["run", "--nonsense"], ["show", "77"], ["stop", "--state", "runing"]):
        done = tpux(*words, code=2)
        assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--nonsense"], "no such option '--nonsense'\n  hint: tpux run --help"),
        (["ssh"], "missing argument 'JOB'\n  hint: tpux ssh --help"),
        (["plugins", "show"], "missing argument 'PLUGIN'\n  hint: tpux plugins show --help"),
        (
            ["logs", "1", "-n", "x"],
            "invalid value for '-n' / '--tail': 'x' is not a valid integer range\n  hint: tpux logs",
        ),
        (["supervisor"], "missing command\n  hint: tpux supervisor --help"),
        (["nonsense"], "unknown command 'nonsense': tpux --help lists the commands\n"),
        (["sup", "x"], "unknown command 'sup': "),
    ],
)
def test_errors_in_the_command_line_have_the_form_of_all_others(runner, words, message):
    done = runner(*words, code=2)
    assert done.stderr.startswith(f"tpux: error: {message}")
    assert done.stderr.count("--help") == 1


def test_tpux_without_a_command_lists_the_jobs(tpux):
    assert "no jobs yet" in tpux().stderr
    tpux("run", tpux.config(SUCCEEDS))
    without_ages = [re.sub(r"\b\d+[smhd]\b", "", tpux(*words).stdout) for words in ((), ("list",))]
    assert without_ages[0] == without_ages[1] != ""
    assert "first" in tpux().stdout


def test_create_with_jobmans_option(tpux):
    tpux.config(SUCCEEDS)
    assert tpux("create", "--config", "job.yaml", "job.name=second").stdout == "1\n"
    assert tpux.json("list")[0]["name"] == "second"
    tpux("wait", "1")


def test_data_goes_to_stdout_and_messages_to_stderr(tpux):
    done = tpux("run", tpux.config(SUCCEEDS))
    assert sorted(done.stdout.splitlines()) == ["[0] fine", "[1] fine"]
    assert all(line.startswith(("tpux: ", "  hint: ")) for line in done.stderr.splitlines())
    assert "\x1b" not in done.stdout + done.stderr
    for command in (
        ["list"],
        ["show", "1"],
        ["plugins", "list"],
        ["supervisor", "status"],
        ["config", "check", "job.yaml"],
    ):
        json.loads(tpux(*command, "--json").stdout)


def test_destructive_commands_require_confirmation(tpux):
    tpux("run", tpux.config(SUCCEEDS))
    for command in (["delete", "1"], ["clean"], ["delete", "--state", "succeeded"]):
        assert "-y" in tpux(*command, code=2).stderr
        tpux(*command, "--dry-run")
    assert "-y" in tpux("delete", "1", code=2, stdin="y\n").stderr
    assert len(tpux.json("list")) == 1
    tpux("delete", "--name", "fir*", "-y")
    assert tpux.json("list") == []
    assert not list(tpux.home.glob("jobs/*/000001")), "all files are deleted"
    assert tpux.create(SUCCEEDS) == "000002", "ids are never reused"
    tpux("wait", "2")
    tpux("clean", "-y")
    assert tpux.json("list") == []


def test_commands_for_a_job_that_has_ended(tpux):
    tpux("run", tpux.config(SUCCEEDS))
    assert "already ended" in tpux("stop", "1").stderr
    assert "tpux rerun" in tpux("resume", "1", code=2).stderr
    assert "exclude each other" in tpux("stop", "1", "--keep", "--release", code=2).stderr
    tpux("rerun", "1")
    tpux("wait", "1")
    assert (tpux.show("1")["attempt"], tpux.show("1")["stage"]) == (2, 0)


def test_messages_name_what_was_typed(tpux):
    assert "unknown command 'nonsense': tpux config --help" in tpux("config", "nonsense", code=2).stderr
    job = tpux.create(SUCCEEDS)
    tpux("wait", job)
    assert "no log of module nope" in tpux("logs", job, "--module", "nope", code=2).stderr
    assert (
        f"job {int(job)} had already ended: succeeded; its machines are released"
        in tpux("stop", job, "--release").stderr
    )


def test_each_of_several_errors_has_the_prefix(runner):
    config = runner.config("jb: {}\ncommand: {cmd: a, foo: 1}\ntpu: {pricing: x}\n")
    for words in (["config", "check"], ["create"], ["preflight"]):
        shown = runner(*words, config, code=2).stderr.splitlines()
        assert [line[:22] for line in shown if not line.startswith("  hint")] == ["tpux: error: job.yaml:"] * 3, words

"""A rule plugin, as its user sees it: its answer is final, core adds backoff and budgets, `tpux rules` lists it."""

from __future__ import annotations

import pytest

PATIENT = """
from tpux import Action, hookimpl

@hookimpl
def on_preempt(job, failure):
    \"\"\"Resume after any failure, five times.

    More about it.
    \"\"\"
    return Action("resume") if job.attempt <= 5 else Action()
"""


def test_the_answer_of_a_rule_plugin_is_what_is_done(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "200"
    tpux.plugin("tpux-patient", PATIENT, entries="patient = tpux_patient")
    job = tpux.create("job: {rule: patient}\ncommand: {cmd: 'exit 3'}\n")
    tpux("wait", job, code=100)
    shown = tpux.show(job)
    assert (shown["attempt"], shown["stage"]) == (6, 5)
    delays = [e["until"] - e["at"] for e in tpux.events(job, "state-changed") if e["to"] == "recovering"]
    assert [round(delay, -1) for delay in delays] == [10, 20, 40, 80, 160]
    assert "in a row" not in shown["why"] + shown["failure"]["hint"]  # the rule ended it


def test_max_restarts_limits_a_rule_plugin_and_is_named_when_it_is_spent(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "200"
    tpux.plugin("tpux-patient", PATIENT, entries="patient = tpux_patient")
    job = tpux.create("job: {rule: patient, max_restarts: {program: 2}}\ncommand: {cmd: 'exit 3'}\n")
    tpux("wait", job, code=100)
    shown = tpux.show(job)
    assert shown["attempt"] == 3
    assert shown["why"] == "2 restarts in a row after program; exit code 3"
    hint = "2 restarts in a row after program; raise job.max_restarts.program to allow more"
    assert shown["failure"]["hint"].endswith(hint)
    assert hint in tpux("show", job).stdout


def test_rules_lists_the_rules_of_plugins(tpux):
    tpux.plugin("tpux-patient", PATIENT, entries="patient = tpux_patient")
    row = {
        "rule": "patient",
        "dist": "tpux-patient",
        "version": "1.0",
        "description": "Resume after any failure, five times.",
    }
    assert tpux.json("rules")["plugins"] == [row]
    assert tpux.json("rules")["plugin_restarts_on_new_machines"] == 20
    printed = tpux("rules").stdout
    assert "a kind that otherwise passes. With job.loop the job is resumed after every kind" in " ".join(
        printed.split()
    )
    assert "patient  tpux-patient 1.0  Resume after any failure, five times.\n" in printed
    assert "at most 20 restarts in a row on new machines" in printed


def test_a_rule_plugin_requests_other_machines_after_two_preemptions(tpux):
    tpux.env["TPUX_CLOCK_RATE"] = "200"
    rule = """
from tpux import Action, hookimpl

@hookimpl
def on_preempt(failure, restarts):
    if failure.kind != "program" or restarts["program"] == 3:
        return Action()
    return Action("resume", reapply=True, tpu={"accelerator": "v4-16"} if restarts["program"] == 2 else {})
"""
    tpux.plugin("tpux-larger", rule, entries="larger = tpux_larger")
    job = tpux.create(
        "job: {rule: larger}\ntpu: {accelerator: v4-8}\ncommand: {cmd: 'echo $TPUX_NUM_WORKERS; exit 3'}\n"
    )
    tpux("wait", job, code=100)
    logs = [tpux("logs", job, "--attempt", str(attempt), "--worker", "0").stdout for attempt in (1, 2, 3, 4)]
    assert [log.split()[-1] for log in logs] == ["1", "1", "1", "2"]
    [chosen] = [event["tpu"] for event in tpux.events(job, "state-changed") if event["tpu"]]
    assert chosen == {"accelerator": "v4-16"}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("reapply=True, tpu={'accelerator': 3}", "tpu.accelerator."),
        ("tpu={'accelerator': 'v4-16'}", "tpu: expected only together with restart and reapply"),
    ],
)
def test_a_wrong_choice_of_machines_is_an_error_that_names_the_plugin(tpux, keys, problem):
    tpux.env["TPUX_CLOCK_RATE"] = "200"
    rule = f"from tpux import Action, hookimpl\n\n@hookimpl\ndef on_preempt(): return Action('resume', {keys})\n"
    tpux.plugin("tpux-wrong", rule, entries="wrong = tpux_wrong")
    job = tpux.create("job: {rule: wrong}\ncommand: {cmd: 'exit 3'}\n")
    tpux("wait", job, code=100)
    shown = tpux.show(job)
    expected = f"exit code 3; plugin wrong (tpux-wrong 1.0) gave a wrong answer from on_preempt: {problem}"
    assert shown["why"].startswith(expected)
    assert shown["attempt"] == 1

"""Commands that end something name each job, its state, attempt and age, and the machines that are released."""

from __future__ import annotations

import re

import pytest

from tests.test_terminal import Terminal

RUNNING = "job: {name: long}\ntpu: {accelerator: v4-16}\ncommand: {cmd: 'echo up; sleep 1000', grace_period: 0s}\n"


@pytest.fixture
def running(tpux):
    """Return a job whose program runs."""
    job = tpux.create(RUNNING)
    tpux.until_state(job, "running")
    return job


def test_a_confirmation_and_a_dry_run_say_what_a_job_is_and_what_is_released(tpux, running):
    machines = rf"v4-16 long-{running}-\w+"
    job = r"job 1 \(long\): running, attempt 1, created [\d.]+ \w+ ago"
    for words in (["delete"], ["stop", "--release"]):
        assert re.search(rf"would .*:\n  {job}; releases {machines}\n", tpux(*words, "--dry-run", "1").stderr), words
    for words in (["stop"], ["reboot"]):
        assert re.search(rf"would .*:\n  {job}\n", tpux(*words, "--dry-run", "1").stderr), words
    for words, asked in (("delete", f"{job}; releases {machines}"), ("restart", job), ("reboot", job)):
        terminal = Terminal(tpux, words, "1")
        terminal.until("[y/N]")
        terminal.type(b"n\n")
        assert terminal.end() == 1
        assert re.search(asked, " ".join(terminal.text.split())), terminal.text
    assert re.search(rf"job 1 deleted; released {machines}\n", tpux("delete", "-y", "1").stderr)


def test_machines_that_the_config_keeps_are_not_called_released(tpux):
    job = tpux.create(RUNNING, "tpu.release=never")
    tpux.until_state(job, "running")
    tpux("stop", job)
    assert f"keeps v4-16 long-{job}-" in tpux("delete", "--dry-run", job).stderr
    assert "would release" not in tpux("clean", "--stopped", "--dry-run").stderr
    assert "released" not in tpux("delete", "-y", job).stderr


def test_a_job_without_machines_is_deleted_without_a_word_about_them(tpux):
    job = tpux.create("command: {cmd: 'true'}\n")
    tpux("wait", job)
    tpux("stop", job, "--release")
    shown = tpux("clean", "--dry-run").stderr
    assert re.search(
        r"would remove with all logs:\n  job 1 \(job\): succeeded, attempt 1, created [\d.]+ \w+ ago\n", shown
    )
    assert "tpux: job 1 deleted\n" in tpux("clean", "-y").stderr


def test_clean_rerun_removes_what_a_newer_job_has_replaced(tpux):
    text = "command: {cmd: 'exit 1'}\njob: {rule: pass}\n"
    jobs = [tpux.create(text), tpux.create(text, "command.grace_period=9s"), tpux.create(text)]
    tpux("wait", *jobs, code=100)
    assert "nothing to clean" in tpux("clean", "--dry-run").stderr
    shown = tpux("clean", "--rerun", "--dry-run").stderr
    assert re.findall(r"  job (\d+) ", shown) == ["1"], "the second has another value, the third is the newest"
    assert "tpux: job 1 deleted" in tpux("clean", "--rerun", "-y").stderr

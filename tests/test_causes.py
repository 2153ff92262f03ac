"""How the cause of an attempt's end is found where the workers that ended by themselves state none."""

from __future__ import annotations

import pytest

from tests.world import World
from tpux import Failure, hookimpl
from tpux.fields import find_line
from tpux.model.events import AttemptEnded, Waiting

TRACEBACK = "Traceback (most recent call last):\\n  File t.py, line 9, in <module>\\n"


class Words:
    """A detector: `peer lost` is a symptom, `bad disk` is a cause."""

    @hookimpl
    def classify_failure(self, attempt):
        found = []
        for ending in attempt.endings:
            if ending.failed and (line := find_line(ending.tail(), "bad disk")):
                found.append(Failure("config", ending.worker, line))
            elif ending.failed and (line := find_line(ending.tail(), "peer lost|Fatal Python error: Aborted")):
                found.append(Failure("infra", ending.worker, line, symptom=True))
        return found


def ends(world) -> list[AttemptEnded]:
    return [event for event, _ in world.controller.record.events() if isinstance(event, AttemptEnded)]


@pytest.fixture
def words(tmp_path, monkeypatch):
    world = World(tmp_path, monkeypatch)
    world.plugins.add("words", Words())
    return world


SILENT = "if [ $TPUX_WORKER = 1 ]; then trap 'echo {at_the_end}; exit 1' TERM; echo {line}; sleep 60 & wait; fi"
FAILED = "sleep 0.3; echo peer lost; exit 1"


def masked(world, line: str, at_the_end: str = "bye"):
    cmd = f"{SILENT.format(line=line, at_the_end=at_the_end)}; {FAILED}"
    world.create(f'command: {{cmd: "{cmd}"}}\nwatch: {{straggler_grace: 1s, verdict_grace: 0}}\njob: {{rule: pass}}\n')
    return world.until("failed").failure


def test_the_cause_on_a_worker_that_tpux_ended_is_found_where_the_others_have_only_symptoms(words):
    failure = masked(words, "bad disk")
    assert (failure.kind, failure.worker, failure.evidence, failure.symptom) == ("config", 1, "bad disk", False)
    assert failure.others == 1


def test_what_a_program_prints_when_tpux_ends_it_is_no_cause(words):
    failure = masked(words, "step 1", at_the_end="bad disk")
    assert (failure.kind, failure.worker) == ("infra", 0)
    assert "worker 1 had not ended" in failure.hint
    assert "tpux logs 1 --worker 1" in failure.hint


def test_a_cause_on_a_worker_that_ended_by_itself_outranks_those_that_tpux_ended(words):
    cmd = "if [ $TPUX_WORKER = 1 ]; then echo bad disk; sleep 60; fi; sleep 0.3; echo own mistake; exit 3"
    words.create(f"command: {{cmd: '{cmd}'}}\nwatch: {{straggler_grace: 1s, verdict_grace: 0}}\njob: {{rule: pass}}\n")
    failure = words.until("failed").failure
    assert (failure.kind, failure.worker) == ("program", 0)
    assert "own mistake" in failure.evidence


def test_symptoms_on_all_workers_that_answer_are_said_to_be_no_cause(words):
    words.create("command: {cmd: 'echo peer lost; exit 1'}\nwatch: {verdict_grace: 0}\njob: {rule: pass}\n")
    assert "no worker states a cause" in words.until("failed").failure.hint


def test_the_same_symptom_three_times_without_progress_is_the_programs_own_failure(words):
    words.create(
        "command: {cmd: 'echo step 0; echo 0x$$ Fatal Python error: Aborted; exit 134'}\n"
        "watch: {verdict_grace: 0}\njob: {rule: resume}\n"
    )
    failure = words.until("failed").failure
    assert [one.failure.kind for one in ends(words)] == ["infra", "infra", "infra", "program"], (
        "the first has a new step"
    )
    assert "3 attempts in a row" in failure.hint


@pytest.mark.parametrize(
    ("cmd", "attempts"),
    [
        ("echo peer lost; exit 1", 3),
        ("echo step $TPUX_ATTEMPT; echo peer lost; exit 1", 10),
        ("[ $TPUX_ATTEMPT = 3 ] && echo Fatal Python error: Aborted || echo peer lost; exit 1", 6),
        ("[ $TPUX_ATTEMPT != 2 ] || touch $TPUX_OUTPUT_DIR/ckpt; echo peer lost; exit 1", 5),
    ],
)
def test_progress_and_other_symptoms_begin_the_count_anew(words, cmd, attempts):
    words.create(
        f"command: {{cmd: '{cmd}', checkpoint: ckpt}}\nwatch: {{verdict_grace: 0}}\n"
        "job: {rule: resume, max_restarts: {infra: 9}}\n"
    )
    assert words.until("failed").attempt == attempts


def checks(world, cmd: str) -> tuple[Waiting, float]:
    """Run a command on machines that announce preemptions; return what `why` says after it fails, and for how long."""
    world.cloud.notice = "sleep 1000"
    world.create(f"command: {{cmd: '{cmd}'}}\nwatch: {{verdict_grace: 45s}}\njob: {{rule: pass}}\n")
    world.until(lambda: "checking" in world.state.why)
    seconds = 0.0
    while world.state.state != "failed":
        world.steps(1)
        world.clock.ahead += 3
        seconds += 3
    whys = [event for event, _ in world.controller.record.events() if isinstance(event, Waiting)]
    return [one for one in whys if "checking" in one.why][-1], seconds


def test_a_mistake_of_the_program_waits_a_few_seconds_and_is_shown_meanwhile(words):
    shown, seconds = checks(words, f'printf "{TRACEBACK}NameError: lr\\n"; exit 1')
    assert ", exit code 1: NameError: lr; checking for 5 s" in shown.why
    assert "tpux restart 1" in shown.hint
    assert "tpux stop 1" in shown.hint
    assert seconds < 20


@pytest.mark.parametrize(
    ("cmd", "said"),
    [
        ("echo peer lost; exit 1", "peer lost"),
        ("echo no traceback; exit 1", "no traceback"),
        (f'printf "{TRACEBACK}NameError: lr\\n"; exit 137', "NameError"),
    ],
)
def test_what_a_preemption_may_have_caused_is_checked_for_all_of_the_grace(words, cmd, said):
    shown, seconds = checks(words, cmd)
    assert said in shown.why
    assert "checking for 45 s" in shown.why
    assert seconds >= 45

"""The root cause of a failed attempt: the same for any order of arrival, and quoted by the line that states it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux.lifecycle.verdict import root_cause
from tpux.model import events
from tpux.model.failures import Failure
from tpux.model.job import WorkerExit
from tpux.model.program_output import TAIL, describe_code, statement, tail
from tpux.store.fold import apply_event
from tpux.store.state import State

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n'


def ended(exits: list[tuple[int, float]], order: list[int]) -> State:
    """Return the state of an attempt whose workers' ends were observed in this order, long after they ended."""
    state = apply_event(None, events.Created(at=1, id="000001", user="me", name="train"))
    for to in ("provisioning", "setting-up", "running"):
        state = apply_event(state, events.StateChanged(at=2, to=to))
    for number, worker in enumerate(order):
        code, at = exits[worker]
        event = events.WorkerExited(at=1000.0 + number, attempt=1, worker=worker, code=code, ended_at=at)
        state = apply_event(state, event)
    return state


@st.composite
def attempts(draw):
    """Return exit codes, times and detectors' findings of 2 to 64 workers, and two orders of arrival."""
    count = draw(st.integers(2, 64))
    times = draw(st.lists(st.floats(10, 100), min_size=count, max_size=count))
    codes = draw(st.lists(st.sampled_from([0, 1, 1, 134, 137, 139]), min_size=count, max_size=count))
    kinds = st.sampled_from([None, None, "infra", "program", "out-of-memory", "tpu-busy", "host-lost"])
    found = draw(st.lists(st.tuples(kinds, st.booleans()), min_size=count, max_size=count))
    findings = [Failure(k, i, f"line of {i}", symptom=s) for i, (k, s) in enumerate(found) if k and codes[i]]
    seed = draw(st.randoms(use_true_random=False))
    return list(zip(codes, times, strict=True)), findings, seed


@given(attempts())
def test_the_cause_is_the_same_for_any_order_of_arrival(case):
    exits, findings, seed = case
    causes = []
    for _ in range(3):
        order = list(range(len(exits)))
        seed.shuffle(order)
        endings = ended(exits, order).endings
        failed = [
            Failure("program", w, f"exit code {e.code}", at=e.at, code=e.code) for w, e in endings.items() if e.code
        ]
        seed.shuffle(findings)
        causes.append(root_cause(findings, failed))
    assert causes[0] == causes[1] == causes[2]
    assert causes[0].others == max(0, sum(code != 0 for code, _ in exits) - (causes[0].worker is not None))


def test_the_earliest_worker_that_failed_by_itself_is_the_cause():
    exits = [Failure("program", w, "exit code 1", "tpux logs 1", at=100.0 - w, code=1) for w in range(64)]
    findings = [Failure("infra", w, "Socket closed", symptom=True) for w in range(64) if w != 20]
    cause = root_cause(findings, exits)
    assert (cause.kind, cause.worker, cause.others) == ("program", 20, 63)
    findings.append(Failure("out-of-memory", 3, "RESOURCE_EXHAUSTED"))
    cause = root_cause(findings, exits)
    assert (cause.kind, cause.worker, cause.code, cause.hint) == ("out-of-memory", 3, 1, "tpux logs 1")
    findings.append(Failure("host-lost", 2, "open(/dev/vfio/0): Device or resource busy"))
    assert root_cause(findings, exits).worker == 3, "the line in the log of worker 2 is later"
    findings.append(Failure("host-lost", 4, "SLICE_FAILURE_CHIP_DRIVER_ERROR"))
    assert root_cause(findings, exits).worker == 4
    symptoms = [finding for finding in findings if finding.symptom]
    assert root_cause(symptoms, [one for one in exits if one.worker != 20]).worker == 63
    assert root_cause([], []).kind == "unknown"


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("", 1, ""),
        ("step 1\nno such flag: --lr\n\n", 2, "no such flag: --lr"),
        (f"{TRACEBACK}ValueError: loss is NaN\nwandb: Synced 3 files\n", 1, "ValueError: loss is NaN"),
        (f"{TRACEBACK}KeyboardInterrupt\n", 130, "KeyboardInterrupt"),
        (
            f"{TRACEBACK}KeyError: 1\n\nDuring handling of it:\n\n{TRACEBACK}train.ConfigError: no model\n",
            1,
            "train.ConfigError: no model",
        ),
        (f"{TRACEBACK}OSError: caught\nretrying\n{TRACEBACK}NameError: name 'lr'\nbye\n", 1, "NameError: name 'lr'"),
        (
            f"{TRACEBACK}ValueError: x\nException ignored in: <function f>\n{TRACEBACK}TypeError: y\n",
            1,
            "ValueError: x",
        ),
        (f"{TRACEBACK}ValueError: x\n{TRACEBACK}torch.ChildFailedError: \n", 1, "ValueError: x"),
        ("".join(f"[rank1]: {line}\n" for line in f"{TRACEBACK}ValueError: x".split("\n")), 1, "ValueError: x"),
        (
            '  File "train.py", line 3\n    lr = = 1\n         ^\nSyntaxError: invalid syntax\n',
            1,
            "SyntaxError: invalid syntax",
        ),
        ("line 1: trian: command not found\nbye\n", 127, "line 1: trian: command not found"),
        (
            f"Fatal Python error: Segmentation fault\n\nThread 0x1:\n{TRACEBACK}KeyError: 1\n",
            139,
            "Fatal Python error: Segmentation fault",
        ),
        (
            "F0101 10:00:00.000001 1 a.cc:1] Check failed: x\n*** stack\n@ 0x1\n",
            134,
            "F0101 10:00:00.000001 1 a.cc:1] Check failed: x",
        ),
        (f"{TRACEBACK}x = 1\n", 1, "x = 1"),
        (
            "fatal: not a git repository\n2024-03-19 10:00:00.123: F xla/client.cc:80] Terminating process because\n",
            134,
            "2024-03-19 10:00:00.123: F xla/client.cc:80] Terminating process because",
        ),
        ("fatal: not a git repository\nbye\n", 128, "fatal: not a git repository"),
        ("free(): invalid pointer\nFatal Python error: Aborted\n", 134, "free(): invalid pointer"),
        ("a: b.c:3: Assertion `x' failed.\nFatal Python error: Aborted\n", 134, "a: b.c:3: Assertion `x' failed."),
    ],
)
def test_the_line_that_states_the_failure(text, code, line):
    assert statement(text, code) == line


def test_a_long_line_is_shortened_and_a_long_log_is_not_read(tmp_path: Path):
    assert len(statement("x" * 1000, 1)) == 300
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b"\nlast \xff line\n")
    before = time.monotonic()
    assert tail(log).endswith("last \ufffd line\n")
    assert len(tail(log)) <= TAIL
    assert WorkerExit(0, 1, log, 1.0).statement() == "last \ufffd line"
    log.write_bytes(b"step 1\r\n 10%\r 20%\r")
    assert tail(log) == "step 1\n 10%\n 20%\n"
    assert tail(tmp_path / "none") == ""
    assert time.monotonic() - before < 60


def test_exit_codes_name_their_signal():
    assert [describe_code(code) for code in (1, 128, 137, 139, 255)] == [
        "exit code 1",
        "exit code 128",
        "exit code 137 (SIGKILL)",
        "exit code 139 (SIGSEGV)",
        "exit code 255",
    ]

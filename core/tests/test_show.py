"""`tpux list`, `show` and `show --json` for every failure in every state, with and without an attempt before it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpux.api.event_lines import describe_event
from tpux.cli.common import current_hint, iso
from tpux.cli.main import app
from tpux.model import events
from tpux.model.failures import FAILURE_KINDS, Failure
from tpux.model.machines import Allocation, Worker
from tpux.model.progress import Progress
from tpux.store import Store
from tpux.store.locks import Lock
from tpux.store.record import Record
from tpux.store.state import TRANSITIONS
from tpux.supervisor.files import Files

pytestmark = pytest.mark.process


CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
PATHS = {
    "pending": [],
    "provisioning": ["provisioning"],
    "setting-up": ["provisioning", "setting-up"],
    "running": ["provisioning", "setting-up", "running"],
    "recovering": ["provisioning", "setting-up", "running", "recovering"],
    "stopping": ["provisioning", "stopping"],
    "stopped": ["provisioning", "stopping", "stopped"],
    "succeeded": ["provisioning", "setting-up", "running", "succeeded"],
    "failed": ["provisioning", "failed"],
}
ALLOCATION = Allocation("tpu", "local", tuple(Worker(index, address=f"10.0.0.{index}") for index in range(2)))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store, and a held lock in the place of a supervisor."""
    store = Store(tmp_path / "home", "me")
    monkeypatch.setenv("TPUX_HOME", str(store.home))
    monkeypatch.setenv("TPUX_USER", "me")
    Files(store.supervisor).directory.mkdir(parents=True)
    lock = Lock(Files(store.supervisor).lock)
    assert lock.acquire()
    yield store
    lock.release()


def make(store: Store, state: str, failure: Failure | None = None, *, attempt: bool = False, why: str = "") -> Record:
    """Create a job whose events end in this state, with this failure just before the last state."""
    record = store.create(lambda job: ({}, events.Created(id=job, user="me", name="train")), at=1.0)
    at = count(2.0)
    assert record.lock.acquire()
    record.refresh()
    steps = PATHS[state]
    for to in steps[:-1]:
        _enter(record, next(at), to, why)
    _fail(record, failure, next(at), attempt=attempt)
    for to in steps[-1:]:
        _enter(record, next(at), to, why)
    record.lock.release()
    return record


def _enter(record: Record, at: float, to: str, why: str) -> None:
    extra = {"kind": "infra", "restart": "resume", "until": 1.0} if to == "recovering" else {}
    record.write(events.StateChanged(to=to, why=why, **extra), at)
    if to == "setting-up":
        record.write(events.Allocated(allocation=ALLOCATION), at)


def _fail(record: Record, failure: Failure | None, at: float, *, attempt: bool) -> None:
    if failure is None:
        return
    if not attempt:
        record.write(events.Failed(failure=failure), at)
        return
    started = events.AttemptStarted(attempt=1, stage=0, resume=False, workers=(0, 1), output_dir="/out")
    record.write(started, at)
    record.write(events.WorkerExited(attempt=1, worker=1, code=None, reason="vanished"), at)
    record.write(events.AttemptEnded(attempt=1, failure=failure), at)


def tpux(*words: str) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("state", TRANSITIONS)
@pytest.mark.parametrize("attempt", [False, True])
def test_every_failure_is_shown(store, state, attempt):
    for kind in FAILURE_KINDS:
        failure = Failure(kind, 1, f"evidence{CLIPBOARD}", "a hint", 3.0) if attempt else Failure(kind)
        job = make(store, state, failure, attempt=attempt).id
        text = tpux("show", job)
        assert f"failure:      {kind}" in text
        assert "\x1b" not in text
        text = tpux("show", job, "--json")
        shown = json.loads(text)
        assert (shown["state"], shown["failure"]["kind"]) == (state, kind)
        assert all(event["at"].startswith("1970-01-01T00:00:") for event in shown["events"])
        assert not re.search(r'"(at|ended_at|release_at|until)": \d', text), "times are ISO 8601"
        assert ('"until": "1970' in text) == (state == "recovering")
        assert shown["failure"]["at"] == ("1970-01-01T00:00:03.000+00:00" if attempt else None)
    assert "\x1b" not in tpux("list", "--all")
    tpux("list", "--all", "--json")


def test_control_characters_of_a_reason_do_not_reach_the_terminal(store):
    job = make(store, "running", why=f"in the queue{CLIPBOARD}\x9b2J").id
    for words in (["list"], ["show", job], ["show", job, "--json"], ["list", "--json"]):
        text = tpux(*words)
        assert "in the queue" in text
        assert not {"\x1b", "\x07", "\x9b"} & set(text)


def test_the_last_ten_events_and_the_workers_are_shown(store):
    record = make(store, "running", Failure("program", 1), attempt=True)
    assert record.lock.acquire()
    for number in range(20):
        record.write(events.Waiting(why=f"reason {number}."), 100.0 + number)
    record.lock.release()
    text = tpux("show", record.id)
    assert "last 10 of 28 events (all: tpux show 1 --events)" in text
    assert "  reason 10." in text
    assert "  reason 9." not in text
    assert "  reason 9." in tpux("show", record.id, "--events")
    assert len(json.loads(tpux("show", record.id, "--json"))["events"]) == 28
    assert "  0  10.0.0.0  running\n  1  10.0.0.1  exit code unknown\n" in text


@pytest.mark.parametrize("release_after", [600.0, None])
def test_held_machines_are_shown(store, release_after):
    record = make(store, "setting-up")
    now = time.time()
    assert record.lock.acquire()
    on_cloud = replace(ALLOCATION, transport="ssh", zone="us-central2-b", costs=True)
    record.write(events.Allocated(allocation=on_cloud), now)
    release_at = now + release_after if release_after else None
    record.write(events.StateChanged(to="failed", why="exit code 1", release_at=release_at), now)
    record.lock.release()
    until = f"{datetime.fromtimestamp(now + 600):%H:%M} (for " if release_after else "they are released by hand; "
    text = tpux("show", record.id)
    assert f"held:         job 1 holds its machines (tpu in us-central2-b) until {until}" in text
    assert "log in: tpux ssh 1; continue: tpux resume 1; run another config on them: tpux run CONFIG --on 1; " in text
    assert "release them now: tpux stop 1 --release" in text
    listed = tpux("list")
    assert re.search(r"  HELD  ", listed)
    assert re.search(r"  2, (9m|10m|released by hand)  ", listed)
    held = json.loads(tpux("show", record.id, "--json"))["held_until"]
    assert held == (iso(now + 600) if release_after else "released by hand")


def test_machines_whose_time_is_over_are_being_released(store):
    record = make(store, "setting-up")
    assert record.lock.acquire()
    record.write(events.Allocated(allocation=replace(ALLOCATION, costs=True)), 100.0)
    record.write(events.StateChanged(to="failed", why="exit code 1", release_at=700.0), 100.0)
    record.lock.release()
    assert "releasing" in tpux("list")


def test_nothing_is_held_on_machines_that_cost_nothing(store):
    record = make(store, "setting-up")
    assert record.lock.acquire()
    record.write(events.Allocated(allocation=replace(ALLOCATION, costs=False)), 100.0)
    record.write(events.StateChanged(to="failed", why="exit code 1"), 100.0)
    record.lock.release()
    assert "HELD" not in tpux("list")
    assert "held:" not in tpux("show", record.id)


def test_a_line_that_repeats_an_earlier_one_is_not_shown(store):
    record = make(store, "provisioning", why="requesting v4-32 in us-central2-b")
    assert record.lock.acquire()
    for number, why in enumerate(["requesting v4-32 in us-central2-b", "in the queue", "in the queue"]):
        record.write(events.Waiting(why=why, saved_state={"try": number}), 10.0 + number)
    record.write(events.StateChanged(to="stopping", why="stop requested"), 20.0)
    record.write(events.RequestAccepted(action="stop", number=1), 20.0)
    record.write(events.StateChanged(to="stopped", why="stopped by user"), 21.0)
    record.write(events.RequestAccepted(action="delete", number=1), 22.0)
    record.lock.release()
    lines = [line[23:] for line in tpux("show", record.id, "--events").splitlines() if line.startswith("  1970")]
    assert lines == [
        "created: train",
        "provisioning: requesting v4-32 in us-central2-b",
        "in the queue",
        "stopping: stop requested",
        "stopped: stopped by user",
        "delete requested",
    ]


def test_every_event_has_a_text():
    for event in events.EVENT_TYPES.values():
        assert event in describe_event.registry, f"{event.type}: api/event_lines.py has no text for it"


SOLVE, EXEC, RESUME = "tpux solve 1", "see tpux exec 1 -- free -g", "new machines: tpux stop 1 --release, tpux resume 1"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the commands that plugins add; a test removes some."""
    commands = dict.fromkeys(("exec", "solve"), "")
    for module in ("tpux.api.hints", "tpux.cli.show"):
        monkeypatch.setattr(f"{module}.added_commands", lambda: commands)
    return commands


def test_a_command_that_is_not_installed_is_not_recommended(store: Store, added: dict[str, str]) -> None:
    job = make(store, "running", None).state
    assert "tpux exec 1 COMMAND" in CliRunner().invoke(app, ["show", "1"]).output
    del added["exec"]
    assert "tpux exec 1 COMMAND" not in CliRunner().invoke(app, ["show", "1"]).output
    assert current_hint(EXEC, job) == f"{EXEC} (tpux exec is not installed: pip install tpux-plugin-shell)"


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("state", PATHS)
def test_a_hint_can_be_followed_in_every_state(store: Store, state: str) -> None:
    job = make(store, state, Failure("program", hint=SOLVE)).state
    held = job.machines is not None
    again = "rerun" if state == "succeeded" else "resume"
    missing = (
        f" (the job holds no machines now; tpux {again} 1 requests new ones)"
        if job.ended
        else " (once the job has machines again)"
    )
    first = "" if job.ended else "stop the job first (tpux stop 1), then: "
    assert current_hint(SOLVE, job) == (first + SOLVE if held else SOLVE + missing)
    assert current_hint(EXEC, job) == (EXEC if held else EXEC + missing)
    assert current_hint(RESUME, job) == RESUME.replace("resume", again)
    assert current_hint("tpux solve 12", job) == "tpux solve 12", "another job"
    shown = CliRunner().invoke(app, ["show", "1"]).output
    if job.failure is not None:
        assert f"hint:         {current_hint(SOLVE, job)}\n" in shown
    assert ("; tpux stop 1\n" in shown) == (not job.ended and state != "stopping")


def test_the_bar_of_each_attempt(store, monkeypatch):
    record = store.create(lambda job: ({}, events.Created(id=job, user=store.user, name="x", workers=4)), at=0.0)
    assert record.acquire()
    workers = tuple(Worker(index, address=f"10.0.0.{index}") for index in range(4))
    taken = Failure("preempted", evidence="gone", worker=None)
    told = [
        (0, events.StateChanged(to="provisioning")),
        (100, events.AllocationRequested(name="x", allocator="local")),
        (100, events.Allocated(allocation=Allocation("x", "local", workers))),
        (100, events.StateChanged(to="setting-up")),
        (120, events.AttemptStarted(attempt=1, stage=0, workers=(0, 1, 2, 3), output_dir="/out", resume=False)),
        (120, events.StateChanged(to="running")),
        (420, events.AttemptEnded(attempt=1, failure=taken, progress=Progress(step=1800))),
        (420, events.StateChanged(to="recovering", kind="preempted", restart="resume", until=430.0)),
        (460, events.StateChanged(to="setting-up")),
        (470, events.AttemptStarted(attempt=2, stage=1, workers=(0, 1, 2, 3), output_dir="/out", resume=True)),
        (470, events.StateChanged(to="running")),
    ]
    for at, event in told:
        record.write(event, float(at))
    record.lock.release()
    monkeypatch.setattr("tpux.cli.show.time.time", lambda: 530.0)
    shown = tpux("show", record.id)
    assert re.search(r"^attempts: 8 min 50 s   q queue  s set-up  # run", shown, re.MULTILINE), shown
    assert "\n   1  " + "q" * 8 + "ss" + "#" * 23 + "x  7 min 0 s  taken away, step 1800\n" in shown
    assert re.search(r"^   2  qqqs#####> +1 min 50 s$", shown, re.MULTILINE)
    assert "\n  0-3  4 workers  running\n" in shown, "workers that are alike"

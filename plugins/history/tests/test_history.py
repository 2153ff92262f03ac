"""`tpux history`: the important events of a period, and on what time was spent."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tpux import Job, env
from tpux.api.times import parse_since
from tpux.errors import UsageError
from tpux.lifecycle import policy
from tpux.model import events
from tpux.model.events import Event, StateChanged
from tpux.model.failures import Failure
from tpux.model.machines import Allocation, Worker
from tpux.model.progress import Progress
from tpux.store import Store, tags
from tpux.store.state import ENDS
from tpux_history import cli, ledger
from tpux_history import use as uses
from tpux_history.use import MachineType, read_history

HOUR, T0 = 3600.0, 1_760_000_000.0
MACHINES = Allocation("n1", "ssh", (Worker(0),), slices=2, accelerator="v5p-8", pricing="spot")
PREEMPTED = Failure("preempted", evidence="n1 is PREEMPTED")


def attempt_ended(number: int, failure: Failure | None, **came: object) -> Event:
    return events.AttemptEnded(attempt=number, failure=failure, **came)  # type: ignore[arg-type]


def started(number: int) -> Event:
    return events.AttemptStarted(attempt=number, stage=number - 1, resume=number > 1, workers=(0,), output_dir="/o")


LIFE: list[tuple[float, Event]] = [
    (0, events.Created(id="000007", user="ann", name="train", accelerator="v4-16")),
    (0, StateChanged(to="provisioning")),
    (0, events.AllocationRequested(name="n1", allocator="tpu-vm")),
    (2, events.Allocated(allocation=MACHINES)),
    (2, StateChanged(to="setting-up")),
    (3, started(1)),
    (3, StateChanged(to="running")),
    (3, events.AttemptRunning(attempt=1)),
    (13, attempt_ended(1, PREEMPTED, progress=Progress(1000))),
    (13, StateChanged(to="recovering", kind="preempted", restart="resume", reapply=True, until=0.0)),
    (13.5, events.Released()),
    (13.5, StateChanged(to="provisioning")),
    (13.5, events.AllocationRequested(name="n1", allocator="tpu-vm")),
    (14, events.Allocated(allocation=MACHINES)),
    (14, StateChanged(to="setting-up")),
    (15, started(2)),
    (15, StateChanged(to="running")),
    (20, attempt_ended(2, Failure("infra", evidence="lost"), progress=Progress(1500, rate=0.1), repeated_steps=360)),
    (20, StateChanged(to="recovering", kind="infra", restart="resume", until=0.0)),
    (20.25, StateChanged(to="setting-up")),
    (20.5, started(3)),
    (20.5, StateChanged(to="running")),
    (24, attempt_ended(3, None)),
    (24, StateChanged(to="succeeded", release_at=T0 + 25 * HOUR)),
    (25, events.Released()),
]
MINE = MachineType("v5p-8", "spot")


def life() -> list[Event]:
    return [event_at(event, T0 + hours * HOUR) for hours, event in LIFE]


def event_at(event: Event, at: float) -> Event:
    return type(event)(**{**vars(event), "at": at})


def test_the_kinds_of_core() -> None:
    assert (uses.LOST_MACHINES, uses.ENDS) == (policy.MACHINE_FAILURES, ENDS)


def test_the_time_of_a_job() -> None:
    history = read_history(life(), T0, T0 + 100 * HOUR)
    hours = {use: seconds / HOUR for use, seconds in history.seconds.items()}
    assert hours == {"queueing": 2, "set-up": 1, "running": 18.5, "preemption": 2, "failures": 0.5}
    assert {kind: seconds / HOUR for kind, seconds in history.machine_seconds.items()} == {MINE: 2 * (11.5 + 11)}
    assert (history.repeated_steps, history.repeated_seconds) == (360, HOUR)
    assert (history.name, history.state) == ("train", "succeeded")
    shown = [event.type for event in history.events]
    assert shown.count("state-changed") == 3, "two restarts, and the end"
    assert "worker-exited" not in shown


def test_the_parts_of_a_period_add_up() -> None:
    numbers = random.Random(7)
    whole = read_history(life(), T0 - HOUR, T0 + 30 * HOUR)
    for _ in range(50):
        cuts = sorted(T0 + numbers.uniform(-1, 30) * HOUR for _ in range(4))
        ends = [T0 - HOUR, *cuts, T0 + 30 * HOUR]
        parts = [read_history(life(), since, until) for since, until in itertools.pairwise(ends)]
        for use, seconds in whole.seconds.items():
            assert sum(part.seconds[use] for part in parts) == pytest.approx(seconds)
        assert sum(part.machine_seconds[MINE] for part in parts) == pytest.approx(whole.machine_seconds[MINE])
        assert sum(part.repeated_steps for part in parts) == whole.repeated_steps


def test_a_clock_that_was_set_back_counts_nothing_twice() -> None:
    happened = life()
    happened[4:4] = [event_at(events.Waiting(why="the clock is wrong"), T0 - 1000 * HOUR)]
    assert read_history(happened, T0, T0 + 100 * HOUR).seconds["queueing"] == 2 * HOUR


GONE: list[Event] = [
    events.Transferred(to="000008", token="1a2b"),
]


@pytest.mark.parametrize("gone", GONE, ids=lambda event: event.type)
def test_machines_that_were_given_away_cost_nothing_more(gone: Event) -> None:
    until = T0 + 100 * HOUR
    history = read_history([*life()[:-1], event_at(gone, T0 + 25 * HOUR)], T0, until)
    assert history.machine_seconds == read_history(life(), T0, until).machine_seconds
    assert history.events[-1].type == gone.type


def test_machines_that_were_taken_over_cost_from_then_on() -> None:
    taken = events.TakenOver(job="000006", name="n1", allocation=MACHINES, saved_state={}, previous_owners=())
    happened = [*life()[:2], event_at(taken, T0 + HOUR), event_at(events.Released(), T0 + 4 * HOUR)]
    history = read_history(happened, T0, T0 + 100 * HOUR)
    assert history.machine_seconds[MINE] / HOUR == 2 * 3
    assert [event.type for event in history.events] == ["created", "taken-over", "released"]


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == code, done.output
    return done.stdout


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.HOME, str(tmp_path))
    store = Store()
    first, *others = life()
    assert isinstance(first, events.Created)
    record = store.create(lambda job: ({}, events.Created(**{**vars(first), "id": job})), at=first.at)
    assert record.lock.acquire()
    record.refresh()
    for event in others:
        record.write(event, event.at)
    record.lock.release()
    assert run("--since", "1h") == ""
    text = run("--since", "2025-10-09")
    assert " 1 train: attempt 1 ended: preempted: n1 is PREEMPTED (step 1000)\n" in text
    assert "360 steps (1 h 0 min)" in text
    assert "v5p-8 spot: 45.0 machine hours\n" in text
    (tmp_path / "prices.yaml").write_text("v5p-8: 4\n")
    assert "v5p-8 spot: 45.0 machine hours, 180.00\ntotal: 180.00\n" in run("1", "--since", "9999d")
    (tmp_path / "other.yaml").write_text("v5p-8: 4\nv5p-8 spot: 2\n")
    text = run("--since", "2025-10-09", "--prices", str(tmp_path / "other.yaml"), "--json")
    assert '"until": "1970' in text
    assert not re.search(r'"(at|ended_at|release_at|until)": \d', text), "times are ISO 8601"
    found = json.loads(text)
    assert found["machines"] == [{"accelerator": "v5p-8", "pricing": "spot", "hours": 45.0, "price": 90.0}]
    [job] = found["jobs"]
    assert (job["seconds"]["preemption"], job["repeated_seconds"]) == (2 * HOUR, HOUR)
    assert [event["type"] for event in job["events"]][-2:] == ["state-changed", "released"]
    (tmp_path / "prices.yaml").write_text("v5p-8: cheap\n")
    for words in (["--since", "soon"], ["--since", "today"], ["--prices", str(tmp_path / "none.yaml")]):
        done = CliRunner().invoke(cli.app, words)
        assert done.exit_code == 1
        assert re.search(
            "such as|prices.yaml:1:8: v5p-8 must be a number|none.yaml: file not found", str(done.exception)
        )


def test_the_hours_of_a_job_outlive_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.HOME, str(tmp_path))
    monkeypatch.setenv(env.USER, "ann")
    store = Store()
    first, *others = life()
    assert isinstance(first, events.Created)
    record = store.create(lambda job: ({}, events.Created(**{**vars(first), "id": job})), at=first.at)
    assert record.lock.acquire()
    record.refresh()
    for event in others:
        record.write(event, event.at)
    told = Job(record.id, "ann", store.id, record.directory, {})
    for event in [*others, others[-1]]:  # the last one is delivered once more
        ledger.on_event(job=told, event=event)
    record.lock.release()
    with (tmp_path / "ledger-ann.jsonl").open("a") as file:
        file.write('{"job": "0000')  # the disk was full
    before = json.loads(run("--since", "2025-10-09", "--json"))
    assert before["deleted"] == []
    shutil.rmtree(record.directory)
    after = json.loads(run("--since", "2025-10-09", "--json"))
    assert after["machines"] == before["machines"]
    first_held, second_held = after["deleted"]
    assert [first_held[key] for key in ("job", "name", "accelerator", "pricing", "slices")] == [
        record.id,
        "train",
        "v5p-8",
        "spot",
        2,
    ]
    assert first_held["end"] < second_held["start"]
    (tmp_path / "prices.yaml").write_text("v5p-8: 4\n")
    text = run("--since", "2025-10-09")
    assert "1 train, deleted: v5p-8 spot, 23.0 h\n" in text
    assert "v5p-8 spot: 45.0 machine hours, 180.00\ntotal: 180.00\n" in text
    assert run("--since", "1h") == ""


def test_sums_by_user_tag_and_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of a job add up whatever they are summed by, and another user's machines are in the user's ledger."""
    monkeypatch.setenv(env.HOME, str(tmp_path))
    monkeypatch.setenv(env.USER, "ann")
    store = Store()
    first, *others = life()
    assert isinstance(first, events.Created)
    record = store.create(lambda job: ({}, events.Created(**{**vars(first), "id": job})), at=first.at)
    tags.change(record.directory, ["lr", "big"], [])
    assert record.lock.acquire()
    record.refresh()
    for event in others:
        record.write(event, event.at)
        ledger.on_event(job=Job(record.id, "ann", store.id, record.directory, {}), event=event)
    record.lock.release()
    line = json.loads((tmp_path / "ledger-ann.jsonl").read_text().splitlines()[0])
    assert (line["tags"], line["user"]) == (["lr", "big"], "ann")
    old = {key: line[key] for key in line if key not in {"tags", "user"}}  # as an older version wrote it
    (tmp_path / "ledger-bob.jsonl").write_text(json.dumps({**old, "zone": "us-west4-a"}) + "\n")
    since = ("--since", "2025-10-09")
    (tmp_path / "prices.yaml").write_text("v5p-8: 4\nv5p-8 spot us-west4-a: 1\n")
    [ann, bob] = json.loads(run("--by", "user", *since, "--json"))
    assert (ann["user"], ann["jobs"], ann["machine_hours"], ann["price"]) == ("ann", 1, 45.0, 180.0)
    assert (bob["user"], bob["jobs"], bob["machine_hours"], bob["price"]) == ("bob", 1, 23.0, 23.0)
    hours = {use: seconds / HOUR for use, seconds in ann["seconds"].items()}
    assert hours == {"queueing": 2, "set-up": 1, "running": 18.5, "preemption": 2, "failures": 0.5}
    by_tag = json.loads(run("--by", "tag", *since, "--json"))
    assert [(one["tag"], one["machine_hours"]) for one in by_tag] == [("big", 45.0), ("lr", 45.0)]
    [by_type] = json.loads(run("--by", "type", *since, "--json"))
    assert (by_type["type"], by_type["seconds"]) == ("v5p-8 spot", ann["seconds"])
    shutil.rmtree(record.directory)
    [ann, _] = json.loads(run("--by", "user,type,tags", *since, "--json"))[::2]
    assert (ann["tag"], ann["type"], ann["machine_hours"]) == ("big", "v5p-8 spot", 45.0)
    (tmp_path / "prices.yaml").write_text("v5p-8 spot us-west4-a: 1\n")
    text = run("--by", "user", *since).splitlines()
    assert text[0].split()[:4] == ["USER", "JOBS", "MACHINE", "HOURS"]
    assert [line.split()[-1] for line in text[1:]] == ["-", "23.00"], "a price that is missing is not 0"
    error = CliRunner().invoke(cli.app, ["--by", "user,zone"]).exception
    assert isinstance(error, UsageError)
    assert error.message == "--by: 'zone' is none of user, tag, type"


def test_a_begin_in_the_future_is_an_error():
    with pytest.raises(UsageError, match="--since 2099-01-01: 2099-01-01 00:00 is in the future"):
        parse_since("2099-01-01", now=T0)


def test_what_since_accepts():
    now = datetime(2025, 10, 9, 12, 30).timestamp()
    times = {
        "today": datetime(2025, 10, 9),
        "yesterday": datetime(2025, 10, 8),
        "2025-10-07": datetime(2025, 10, 7),
        "2025-10-07 10:00": datetime(2025, 10, 7, 10),
        "10:00": datetime(2025, 10, 9, 10),
        "13:15:30": datetime(2025, 10, 8, 13, 15, 30),
        "90m": datetime(2025, 10, 9, 11),
        "60": datetime(2025, 10, 9, 12, 29),
    }
    assert {text: datetime.fromtimestamp(parse_since(text, now)) for text in times} == times


@pytest.mark.parametrize("name", ["yesterday", "12h", "2026-11-20", "7", "train", "2999-01-01"])
def test_a_time_in_place_of_a_job(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.HOME, str(tmp_path))
    error = CliRunner().invoke(cli.app, [name]).exception
    assert isinstance(error, UsageError)
    assert error.message == f"there is no job {name}"
    is_time = name in {"yesterday", "12h", "2026-11-20"}
    assert error.hint.endswith(f": tpux history --since {name}") == is_time

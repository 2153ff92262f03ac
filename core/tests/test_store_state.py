"""The state is a fold of the events: a snapshot and the events after it give the same state as all events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpux.errors import TpuxError
from tpux.model import events
from tpux.model.events import Event
from tpux.model.failures import FAILURE_KINDS, Failure
from tpux.model.json import JsonValue, build, dump
from tpux.model.machines import Allocation, Worker
from tpux.model.progress import Progress
from tpux.model.states import JobState, RequestAction
from tpux.store.fold import apply_event
from tpux.store.locks import Lock
from tpux.store.record import Record
from tpux.store.state import ENDS, TRANSITIONS, State

CREATED = events.Created(at=0.0, id="000001", user="me", name="n")
ALLOCATION = Allocation("n", "local", (Worker(0), Worker(1)), zone="z")


def moved(to: JobState, at: float = 0.0) -> Event:
    if to == "recovering":
        return events.StateChanged(at=at, to=to, why="w", kind="infra", restart="resume", reapply=True, until=5.0)
    return events.StateChanged(at=at, to=to, why="w", release_at=9.0 if to == "failed" else None)


def possible_events(state: State, at: float) -> list[Event]:
    """Return an example of each kind of event that the lifecycle may write in this state."""
    failures = [Failure(kind, 1, "e") for kind in FAILURE_KINDS]
    choices: list[Event] = [
        *(moved(to, at) for to in sorted(TRANSITIONS[state.state])),
        events.Waiting(at=at, why="x"),
        events.Waiting(at=at, why="x", saved_state={"a": [1, {"b": None}]}),
        events.AllocationRequested(at=at, name="n", allocator="local"),
        events.Allocated(at=at, allocation=ALLOCATION),
        events.Released(at=at),
        *(events.ReleaseScheduled(at=at, release_at=release_at) for release_at in (None, 3.0)),
        *(events.Failed(at=at, failure=failure) for failure in failures[:2]),
        *(events.RequestAccepted(at=at, number=1, action=action) for action in get_args(RequestAction)),
        events.ConfigChanged(at=at, config="configs/1", name="n", allocator="local", workers=1),
        events.ResolutionUpdated(at=at, plugin="code", values={"snapshot": "0123"}),
        events.UnknownEvent(at=at, facts={"type": "of-tomorrow", "at": at}),
        events.AttemptStarted(at=at, attempt=state.attempt + 1, stage=0, resume=False, workers=(0, 1), output_dir="o"),
    ]
    if state.attempt:
        attempt = state.attempt
        choices += [
            events.AttemptRunning(at=at, attempt=attempt),
            *(events.WorkerExited(at=at, attempt=attempt, worker=1, code=code) for code in (None, 0, 1)),
            *(events.AttemptEnded(at=at, attempt=attempt, failure=failure) for failure in (None, *failures)),
        ]
    return choices


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=25), st.integers(0, 25))
def test_any_sequence_of_events_folds(choices: list[int], cut: int) -> None:
    state = middle = apply_event(None, CREATED)
    history: list[Event] = []
    for number, choice in enumerate(choices):
        possible = possible_events(state, float(number))
        history.append(possible[choice % len(possible)])
        assert events.from_json(json.loads(json.dumps(history[-1].to_json()))) == history[-1]
        before, state = state, apply_event(state, history[-1])
        if number == cut:
            middle = build(State, json.loads(json.dumps(dump(before))))  # as a snapshot holds it
            assert middle == before
    for later in history[cut:]:
        middle = apply_event(middle, later)
    assert cut >= len(choices) or middle == state
    assert state.ended == (state.state in ENDS)
    assert build(State, json.loads(json.dumps(dump(state)))) == state


@pytest.mark.parametrize("state", TRANSITIONS)
@pytest.mark.parametrize("to", TRANSITIONS)
def test_the_table_of_transitions(state: JobState, to: JobState) -> None:
    before = State("000001", "me", "n", 0.0, 0.0, 0.0, state=state)
    if to in TRANSITIONS[state]:
        assert apply_event(before, moved(to)).state == to
    else:
        with pytest.raises(TpuxError, match=f"a job that is {state} cannot become {to}"):
            apply_event(before, moved(to))


def test_every_state_is_reachable_and_every_live_one_can_stop_and_fail() -> None:
    assert {state for states in TRANSITIONS.values() for state in states} == TRANSITIONS.keys()
    for state in TRANSITIONS.keys() - ENDS - {"stopping"}:
        assert TRANSITIONS[state] >= {"stopping", "failed"}
    assert all(TRANSITIONS[end] == {"pending"} for end in ENDS)


def after_attempt(seconds: float, *, restarts_reset: bool) -> State:
    """Return the state after a restart for `infra` and an attempt of this length."""
    history = [
        CREATED,
        moved("provisioning"),
        moved("recovering"),
        events.AttemptStarted(at=0.0, attempt=1, stage=0, resume=False, workers=(0,), output_dir="o"),
        events.AttemptEnded(at=seconds, attempt=1, failure=None, restarts_reset=restarts_reset),
    ]
    state = None
    for event in history:
        state = apply_event(state, event)
    assert state is not None
    return state


@pytest.mark.parametrize("seconds", [0.0, 60.0, 3599.0, 3601.0, 1e9])
def test_the_reset_of_restarts_depends_on_the_event_alone(seconds: float) -> None:
    assert after_attempt(seconds, restarts_reset=False).restarts == {"infra": 1}
    assert after_attempt(seconds, restarts_reset=True).restarts == {}


def test_a_rerun_stays_one_until_its_attempt_starts() -> None:
    """As in a store of a tpux that wrote `resume` when the machines of a rerun were lost before its attempt."""
    first, second = (
        events.AttemptStarted(attempt=number, stage=0, resume=False, workers=(0,), output_dir=f"o{number}")
        for number in (1, 2)
    )
    state = apply_event(None, CREATED)
    for event in (moved("provisioning"), moved("setting-up"), first, moved("running")):
        state = apply_event(state, event)
    ended = events.AttemptEnded(attempt=1, failure=Failure("program"), progress=Progress(9))
    for event in (ended, moved("failed"), moved("pending")):
        state = apply_event(state, event)
    state = apply_event(state, events.RequestAccepted(number=1, action="rerun"))
    for to in ("provisioning", "setting-up", "recovering", "setting-up"):
        state = apply_event(state, moved(to))
    assert (state.from_scratch, state.reached) == (True, 9)
    state = apply_event(state, second)
    assert (state.from_scratch, state.outputs, state.reached) == (False, (), None)
    for to in ("running", "recovering"):
        state = apply_event(state, moved(to))
    assert not state.from_scratch, "the next attempt resumes"


def record(directory: Path) -> Record:
    return Record(directory, Lock(directory.parent / "lock"))


@pytest.fixture
def writer(tmp_path: Path) -> Record:
    """Return the record of a new job, with its lock acquired."""
    directory = tmp_path / "000001"
    directory.mkdir()
    writer = record(directory)
    assert writer.lock.acquire()
    writer.write(CREATED, 0.0)
    return writer


def test_a_reader_sees_what_the_writer_wrote_whatever_the_snapshot_holds(writer: Record) -> None:
    reader, snapshots, snapshot = record(writer.directory), [], writer.directory / "state.json"
    states: list[JobState] = ["provisioning", "setting-up", "running", "succeeded", "pending"]
    for number, to in enumerate(states):
        writer.write(events.StateChanged(to=to), float(number))
        snapshots.append(snapshot.read_bytes())
        assert reader.refresh() == writer.state
    final = writer.state
    for content in [*snapshots, b"", b"{", b"\xff"]:
        snapshot.write_bytes(content)
        assert record(writer.directory).refresh() == final
    snapshot.unlink()
    assert record(writer.directory).refresh() == final


def test_a_request_is_folded_as_it_is_stored(writer: Record) -> None:
    writer.write(events.StateChanged(to="provisioning"), at=1.0)
    writer.write(events.StateChanged(to="setting-up"), at=2.0)
    writer.write(events.AttemptStarted(attempt=1, stage=0, resume=False, workers=(0,), output_dir="/out"), at=3.0)
    writer.write(events.RequestAccepted(action="stop", number=1), at=4.0)
    (writer.directory / "state.json").unlink()
    assert Record(writer.directory, writer.lock).refresh() == writer.state


def test_a_snapshot_counts_only_with_its_events(writer: Record) -> None:
    """As after a power failure, or with `events.jsonl` restored from a backup."""
    path = writer.directory / "events.jsonl"
    length = path.stat().st_size
    writer.write(events.StateChanged(to="provisioning"), 1.0)
    with path.open("r+b") as file:
        file.truncate(length)
    assert record(writer.directory).refresh().state == "pending"


def test_a_snapshot_of_another_format_is_computed_anew(writer: Record) -> None:
    snapshot = writer.directory / "state.json"
    content = json.loads(snapshot.read_text())
    content["state"]["name"] = "as another version sees it"
    snapshot.write_text(json.dumps({**content, "format": 99}))
    assert record(writer.directory).refresh().name == "n"
    snapshot.write_text(json.dumps({**content, "state": {**content["state"], "colour": "red"}}))
    assert record(writer.directory).refresh().name == "n"
    snapshot.write_text(json.dumps({**content, "state": {**content["state"], "run": None}}))
    assert record(writer.directory).refresh().name == "n"
    snapshot.write_text(json.dumps(content))
    assert record(writer.directory).refresh().name == "as another version sees it", "the snapshot is used at all"


def test_an_event_that_cannot_follow_is_not_written(writer: Record) -> None:
    before = writer.events_path.read_bytes()
    with pytest.raises(TpuxError, match="a job that is pending cannot become running"):
        writer.write(events.StateChanged(to="running"), 1.0)
    assert writer.events_path.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"type": "worker-exited", "attempt": 1, "worker": 0}, "code is missing"),
        ({"type": "worker-exited", "attempt": 1, "worker": "0", "code": 0}, "worker: '0' is not int"),
        ({"type": "failed", "failure": {"kind": 1}}, "failure: kind: 1 is not"),
        ({"type": "attempt-ended", "attempt": 1, "failure": 1}, "failure: 1 is not Failure"),
        ({"type": "state-changed", "to": "recovering"}, "recovering needs kind, restart and until"),
    ],
)
def test_a_field_that_is_missing_or_of_another_type_is_an_error(line: dict[str, JsonValue], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        events.from_json({**line, "at": 1.0})


def append(writer: Record, line: str) -> None:
    with writer.events_path.open("a") as file:
        file.write(f"{line}\n")


def test_fields_and_types_of_newer_versions_are_ignored(writer: Record) -> None:
    append(writer, '{"type": "of-tomorrow", "at": 5.0, "to": "failed"}')
    append(writer, '{"type": "waiting", "version": 1, "at": 6.0, "why": "for rain", "where": "outside"}')
    state = record(writer.directory).refresh()
    assert (state.state, state.why, state.updated_at) == ("pending", "for rain", 6.0)
    unknown, _ = [event for event, _ in record(writer.directory).events()][1:]
    assert unknown.to_json() == {"type": "of-tomorrow", "at": 5.0, "to": "failed"}, "it is kept as it was"


def test_a_kind_of_failure_of_a_newer_version_is_read(writer: Record) -> None:
    append(writer, '{"type": "failed", "at": 5.0, "failure": {"kind": "of-tomorrow", "evidence": "e"}}')
    failure = record(writer.directory).refresh().failure
    assert (failure.kind, failure.evidence) == ("of-tomorrow", "e")


def test_an_event_that_would_be_misread_is_refused(writer: Record) -> None:
    append(writer, '{"type": "waiting", "version": 2, "at": 6.0, "why": "for rain"}')
    with pytest.raises(TpuxError, match="event 'waiting' has version 2, this tpux knows 1") as caught:
        record(writer.directory).refresh()
    assert "pip install -U tpux-core" in caught.value.hint


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '{"type": "moved"',
        '{"type": "waiting", "at": 1}',
        '{"type": "waiting", "at": "1", "why": ""}',
        '{"at": 1}',
        '{"type": "released"}',
    ],
)
def test_a_corrupt_line_is_an_error_with_its_place(writer: Record, line: str) -> None:
    append(writer, line)
    with pytest.raises(TpuxError, match="corrupt event") as caught:
        record(writer.directory).refresh()
    assert str(writer.events_path) in caught.value.where


def test_the_reason_of_the_end_is_kept_when_the_machines_are_released() -> None:
    state = apply_event(apply_event(None, CREATED), moved("provisioning"))
    state = apply_event(state, events.StateChanged(at=1, to="failed", why="exit code 3", release_at=9.0))
    waiting = apply_event(state, events.Waiting(at=2, why="waiting for 2 processes to end"))
    assert (waiting.why, waiting.end_why) == ("waiting for 2 processes to end", "exit code 3")
    released = apply_event(waiting, events.Released(at=3))
    assert (released.why, released.end_why) == ("exit code 3", "exit code 3")
    assert apply_event(released, events.StateChanged(at=4, to="pending", why="resuming")).end_why == ""


FORMER = [
    ({"type": "resource-low", "resource": "memory", "workers": [1], "message": "5 MB free"}, "warned"),
    ({"type": "stragglers-reported", "workers": [1], "message": "it still runs", "hint": "end it"}, "warned"),
    ({"type": "backoff-skipped"}, ""),
    ({"type": "transfer-started", "to": "000002"}, "request-accepted"),
    ({"type": "transfer-cancelled"}, "request-accepted"),
]


@pytest.mark.parametrize(("line", "type_"), FORMER)
def test_an_event_of_a_type_that_was_replaced_is_read(line: dict[str, JsonValue], type_: str) -> None:
    event = events.from_json({"version": 1, "at": 5.0, "attempt": 3, **line})
    assert (event.type, event.at, event.attempt, event.stage) == (type_, 5.0, 3, 0)


def test_a_job_of_the_last_version_that_was_handing_over_its_machines_still_does(writer: Record) -> None:
    def state(*lines: dict[str, JsonValue]) -> State:
        found = apply_event(None, CREATED)
        for to in ("provisioning", "failed"):
            found = apply_event(found, events.StateChanged(to=to, why="it failed"))  # type: ignore[arg-type]
        for line in lines:
            found = apply_event(found, events.from_json({"version": 1, "at": 5.0, **line}))
        assert found is not None
        return found

    started: dict[str, JsonValue] = {"type": "transfer-started", "to": "000002"}
    asked: dict[str, JsonValue] = {"type": "request-accepted", "action": "transfer", "number": 4, "to": "000002"}
    assert state(started).transfer_to == "000002"
    assert (state(started, asked).transfer_to, state(started, asked).last_request_number) == ("000002", 4)
    assert not state(asked).transfer_to, "it was refused"
    assert state(started, asked, {"type": "transfer-cancelled"}).transfer_to == ""
    assert state(started, asked, {"type": "transferred", "to": "000002", "token": "1a2b"}).transfer_to == ""


def test_each_event_has_the_attempt_and_the_stage_after_it(writer: Record) -> None:
    writer.write(moved("provisioning"), 1.0)
    writer.write(moved("setting-up"), 2.0)
    writer.write(events.AttemptStarted(attempt=2, stage=1, resume=True, workers=(0,), output_dir="o"), 3.0)
    writer.write(events.WorkerExited(worker=0, code=1), 4.0)
    written = writer.write(moved("failed"), 5.0)
    stamps = [(event.attempt, event.stage) for event, _ in writer.events()]
    assert stamps == [(0, 0), (0, 0), (0, 0), (2, 1), (2, 1), (2, 1)]
    assert (written.attempt, written.stage, written.at) == (2, 1, 5.0)

"""The state as a fold of the events: whatever is written, a snapshot and its tail fold to the same as all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpux.errors import TpuxError
from tpux.plugin.failures import FAILURE_KINDS, Failure
from tpux.plugin.machines import JsonValue
from tpux.store.events import Event
from tpux.store.locks import Lock
from tpux.store.record import Record
from tpux.store.state import ENDS, TRANSITIONS, JobState, State, apply_event

CREATED: Event = {"type": "created", "at": 0.0, "id": "000001", "user": "me", "name": "n"}
ACTION: dict[str, JsonValue] = {"restart": "resume", "reapply": True, "solve": False, "until": 5.0}
ALLOCATION: dict[str, JsonValue] = {"name": "n", "transport": "local", "workers": [{}, {}], "zone": "z"}


def event(state: State, draw: st.DataObject) -> dict[str, JsonValue]:
    """Any event that the lifecycle may write in this state."""
    to = [("moved", word) for word in sorted(TRANSITIONS[state.state])]
    free = ["waiting", "requested", "allocated", "released", "keep", "failure", "wanted", "unheard-of"]
    attempt = ["attempt-started"] + (["attempt-running", "worker-ended", "attempt-ended"] if state.run else [])
    kind, word = draw.draw(st.sampled_from([*to, *((name, "") for name in free + attempt)]))
    failure = draw.draw(st.sampled_from([None, *FAILURE_KINDS]))
    told: JsonValue = None if failure is None else dict(Failure(failure, 1, "e").to_json())
    facts: dict[str, dict[str, JsonValue]] = {
        "moved": {"to": word, "why": "w", "release_at": 9.0 if word == "failed" else None, "kind": "infra", **ACTION},
        "waiting": {"why": "x", "saved_state": draw.draw(st.sampled_from([None, {"a": 1}]))},
        "allocated": {"allocation": ALLOCATION, "saved_state": None},
        "keep": {"until": draw.draw(st.sampled_from([None, 3.0]))},
        "failure": dict(Failure("setup", 0, "e").to_json()),
        "wanted": {"want": draw.draw(st.sampled_from(["stop", "resume", "rerun", "delete"])), "serial": "s"},
        "attempt-started": {"attempt": state.attempt + 1, "stage": 0, "workers": [0, 1], "output_dir": "o"},
        "attempt-running": {"attempt": state.attempt},
        "worker-ended": {"worker": 1, "code": draw.draw(st.sampled_from([None, 0, 1])), "reason": ""},
        "attempt-ended": {"attempt": state.attempt, "failure": told},
    }
    return facts.get(kind, {}) | {"type": kind}


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 25), st.integers(0, 25))
def test_any_allowed_story_folds(data: st.DataObject, length: int, cut: int) -> None:
    state = apply_event(None, CREATED)
    story: list[Event] = []
    middle = state
    for number in range(length):
        story.append({**event(state, data), "at": float(number)})
        before, state = state, apply_event(state, story[-1])
        if number == cut:
            middle = State.from_json(json.loads(json.dumps(before.to_json())))  # as a snapshot brings it back
            assert middle == before
    for later in story[cut:]:
        middle = apply_event(middle, later)
    assert cut >= length or middle == state
    assert state.ended == (state.state in ENDS)
    assert State.from_json(json.loads(json.dumps(state.to_json()))) == state


@pytest.mark.parametrize("state", TRANSITIONS)
@pytest.mark.parametrize("to", TRANSITIONS)
def test_the_table_of_transitions(state: JobState, to: JobState) -> None:
    before = State("000001", "me", "n", 0.0, 0.0, 0.0, state=state)
    move: Event = {"type": "moved", "at": 1.0, "to": to, "kind": "infra", **ACTION}
    if to in TRANSITIONS[state]:
        assert apply_event(before, move).state == to
    else:
        with pytest.raises(TpuxError, match=f"a job that is {state} cannot become {to}"):
            apply_event(before, move)


def test_every_state_is_reached_and_every_live_one_can_be_stopped_and_fail() -> None:
    assert {word for words in TRANSITIONS.values() for word in words} == TRANSITIONS.keys()
    for state in TRANSITIONS.keys() - ENDS - {"stopping"}:
        assert TRANSITIONS[state] >= {"stopping", "failed"}
    assert all(TRANSITIONS[end] == {"pending"} for end in ENDS)


@pytest.mark.parametrize("broken", [{}, {"at": 1.0}, {"at": 1.0, "to": 5}, {"at": 1.0, "to": []}])
def test_an_event_that_lacks_something_is_an_error_for_people(broken: dict[str, JsonValue]) -> None:
    with pytest.raises(TpuxError):
        apply_event(apply_event(None, CREATED), {"type": "moved", **broken})
    with pytest.raises(TpuxError):
        apply_event(None, {"type": "created", **broken})


def record(directory: Path) -> Record:
    return Record(directory, Lock(directory.parent / "lock"))


def test_a_reader_sees_what_the_writer_wrote_whatever_becomes_of_the_snapshot(tmp_path: Path) -> None:
    directory = tmp_path / "000001"
    directory.mkdir()
    writer = record(directory)
    assert writer.lock.acquire()
    reader, snapshots = record(directory), []
    writer.write("created", 0.0, id="000001", user="me", name="n")
    moves: list[JobState] = ["provisioning", "setting-up", "running", "succeeded", "pending"]
    for number, to in enumerate(moves):
        writer.write("moved", float(number), to=to)
        snapshots.append((directory / "state.json").read_bytes())
        assert reader.refresh() == writer.state
    final = writer.state
    for content in [*snapshots, b"", b"{", b"\xff"]:
        (directory / "state.json").write_bytes(content)
        assert record(directory).refresh() == final
    (directory / "state.json").unlink()
    assert record(directory).refresh() == final

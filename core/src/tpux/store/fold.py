"""The fold: a job's state after one more event. Nothing but the event decides, so every version computes the same."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

from tpux.errors import TpuxError
from tpux.model import events
from tpux.model.events import Event
from tpux.model.failures import Action
from tpux.model.json import JsonValue
from tpux.store.state import ENDS, TRANSITIONS, Ending, Run, State


def apply_event(state: State | None, event: Event) -> State:
    """Return the state after `event`.

    Args:
        state: the state before it; None before the first event.
        event: what happened. An event of an unknown type changes nothing.

    Raises:
        TpuxError: the event cannot happen in this state.
    """
    if state is not None:
        return replace(_apply(event, state), updated_at=event.at)
    if not isinstance(event, events.Created):
        raise TpuxError(f"the first event is {event.type!r}, not 'created'")
    return State(
        id=event.id,
        user=event.user,
        name=event.name,
        created_at=event.at,
        updated_at=event.at,
        since=event.at,
        accelerator=event.accelerator,
        zone=event.zone,
        allocator=event.allocator,
        workers=event.workers,
        token=event.token,
        takes_over=event.takes_over,
    )


@singledispatch
def _apply(event: Event, state: State) -> State:
    del event
    return state


@_apply.register
def _(event: events.StateChanged, state: State) -> State:
    if event.to not in TRANSITIONS[state.state]:
        raise TpuxError(f"a job that is {state.state} cannot become {event.to}", where=f"job {state.id}")
    end_why = event.why if event.to in ENDS else ""
    if event.to in ENDS and state.waits_for_takeover:
        state = replace(state, takes_over="")
    before = state.state
    state = replace(state, state=event.to, since=event.at, why=event.why, hint="", end_why=end_why, waiting_until=None)
    state = replace(state, cleaning_up=False)
    if event.to in {"pending", "recovering"}:
        state = replace(state, run=replace(state.run, succeeded=False))
    if event.to == "pending":
        return replace(state, failure=None, action=Action(), restarts={}, reapplied=0, release_at=None, kept=False)
    if event.to == "provisioning":
        return replace(state, tpu=dict(state.action.tpu) if before == "recovering" else {})
    if event.to == "setting-up":
        return replace(state, round=state.round + 1, prepared=state.prepared and state.setup_only is None)
    if event.to == "recovering":
        # Machines were lost while solvers ran: these may run on where a machine stays, and have to be ended.
        prepared = state.prepared and before != "recovering"
        return _recovering(event, replace(state, prepared=prepared))
    if event.hint and state.failure is not None:
        hint = "; ".join(filter(None, [state.failure.hint, event.hint]))
        state = replace(state, failure=replace(state.failure, hint=hint))
    return _release_scheduled(state, event.release_at, event.at) if event.to in ENDS else state


def _release_scheduled(state: State, release_at: float | None, at: float) -> State:
    return replace(state, release_at=release_at, release_after=max(0.0, release_at - at) if release_at else 0.0)


def _recovering(event: events.StateChanged, state: State) -> State:
    """Apply a move to recovering. The action is part of the event, so a crash cannot count a restart twice."""
    kind = str(event.kind)
    return replace(
        state,
        action=Action(event.restart, event.reapply, event.solve, event.tpu),
        backoff_until=event.until or 0.0,
        restarts={**state.restarts, kind: state.restarts.get(kind, 0) + 1},
        reapplied=state.reapplied + event.reapply,
        from_scratch=state.from_scratch or event.restart == "rerun",  # only the attempt that does so clears it
        last_request=_without_skips(state),
    )


def _without_skips(state: State) -> dict[str, JsonValue]:
    """Return the last request without the modules that it skips: a start that follows a failure skips none."""
    return {**state.last_request, "skip_setup": False} if state.last_request else {}


@_apply.register
def _(event: events.Waiting, state: State) -> State:
    saved_state = state.saved_state if event.saved_state is None else dict(event.saved_state)
    return replace(state, why=event.why, hint=event.hint, saved_state=saved_state, waiting_until=event.until)


@_apply.register
def _(event: events.AllocationRequested, state: State) -> State:
    return replace(state, requested=True, request_name=event.name, saved_state={}, release_at=None, releasing=False)


@_apply.register
def _(event: events.Allocated, state: State) -> State:
    allocation = event.allocation
    return replace(
        state,
        takes_over="",
        allocation=allocation.to_json(),
        prepared=state.prepared and state.allocation == allocation.to_json(),
        workers=len(allocation.workers),
        zone=allocation.zone or state.zone,
        saved_state=state.saved_state if event.saved_state is None else dict(event.saved_state),
    )


@_apply.register
def _(_: events.CleanUpStarted, state: State) -> State:
    return replace(state, prepared=False, cleaning_up=True)


@_apply.register
def _(event: events.TakenOver, state: State) -> State:
    return replace(
        state,
        requested=True,
        request_name=event.name,
        allocation=event.allocation.to_json(),
        saved_state=dict(event.saved_state),
        workers=len(event.allocation.workers),
        zone=event.allocation.zone or state.zone,
        transfer_from=event.job,
        previous_owners=[dict(labels) for labels in event.previous_owners],
    )


@_apply.register
def _(event: events.Transferred, state: State) -> State:
    return _without_machines(replace(state, token=event.token, kept=False))


@_apply.register
def _(_: events.ReleaseStarted, state: State) -> State:
    return replace(state, releasing=True)


@_apply.register
def _(event: events.WorkerUpdated, state: State) -> State:
    if (allocation := state.machines) is None:
        return state
    workers = tuple(event.worker if each.index == event.worker.index else each for each in allocation.workers)
    return replace(state, allocation=replace(allocation, workers=workers).to_json())


@_apply.register
def _(_: events.Released, state: State) -> State:
    return _without_machines(state)


def _without_machines(state: State) -> State:
    why = state.end_why if state.ended else state.why  # an ended job waited for the release alone
    return replace(
        state,
        requested=False,
        request_name="",
        allocation=None,
        prepared=False,
        takes_over="",
        transfer_to="",
        previous_owners=[],
        saved_state={},
        tpu={},
        release_at=None,
        releasing=False,
        why=why,
        hint="",
        waiting_until=None,
    )


@_apply.register
def _(event: events.ReleaseScheduled, state: State) -> State:
    state = _release_scheduled(state, event.release_at, event.at)
    return replace(state, kept=event.release_at is None)


@_apply.register
def _(event: events.AttemptStarted, state: State) -> State:
    run = Run(
        workers=event.workers,
        output_dir=event.output_dir,
        previous_output_dir=event.previous_output_dir,
        resume=event.resume,
        round=state.round,
        started_at=event.at,
        ended=False,
    )
    return replace(
        state,
        attempt=event.attempt,
        stage=event.stage,
        run=run,
        endings={},
        collected={},
        outputs=() if state.from_scratch else state.outputs,
        failure=None,
        from_scratch=False,
        updated=(),
        prepared=True,
        last_request=_without_skips(state),
        progress=state.progress if event.resume else None,
        reached=None if state.from_scratch else state.reached,
    )


@_apply.register
def _(_: events.AttemptRunning, state: State) -> State:
    return replace(state, run=replace(state.run, running=True))


@_apply.register
def _(event: events.WorkerExited, state: State) -> State:
    at = event.at if event.ended_at is None else event.ended_at
    ending = Ending(event.code, event.reason, at, event.signal)
    return replace(state, endings={**state.endings, event.worker: ending})


@_apply.register
def _(event: events.PreemptionAnnounced, state: State) -> State:
    if state.run.notice:
        return state
    return replace(state, run=replace(state.run, notice=event.evidence, notice_worker=event.worker))


@_apply.register
def _(event: events.AttemptTerminating, state: State) -> State:
    return replace(state, run=replace(state.run, failure=event.failure))


@_apply.register
def _(event: events.Collected, state: State) -> State:
    of_worker = {**state.collected.get(event.worker, {}), event.plugin: event.data}
    return replace(state, collected={**state.collected, event.worker: of_worker})


@_apply.register
def _(event: events.FilesCollected, state: State) -> State:
    return replace(state, files_collected=state.attempt if event.attempt is None else event.attempt)


@_apply.register
def _(event: events.AttemptEnded, state: State) -> State:
    succeeded = event.failure is None and not event.stopped
    lasted = event.at - state.run.started_at
    run = replace(state.run, running=False, ended=True, succeeded=succeeded, lasted=lasted)
    step = event.progress.step if event.progress else None
    return replace(
        state,
        failure=event.failure,
        outputs=(*state.outputs, state.run.output_dir),
        restarts={} if event.restarts_reset else state.restarts,
        reapplied=0 if event.restarts_reset else state.reapplied,
        preemptions=state.preemptions + (event.failure is not None and event.failure.kind == "preempted"),
        run=run,
        progress=event.progress,
        reached=None if succeeded else state.reached if step is None else step,
    )


@_apply.register
def _(event: events.Failed, state: State) -> State:
    return replace(state, failure=event.failure)


@_apply.register
def _(event: events.ConfigChanged, state: State) -> State:
    return replace(
        state,
        config=event.config,
        name=event.name,
        accelerator=event.accelerator,
        zone=event.zone,
        allocator=event.allocator,
        workers=event.workers if state.allocation is None else state.workers,
        resolved={},
        prepared=False,
    )


@_apply.register
def _(event: events.ResolutionUpdated, state: State) -> State:
    updated = tuple(dict.fromkeys([*state.updated, event.plugin]))
    return replace(state, resolved={**state.resolved, event.plugin: dict(event.values)}, updated=updated)


@_apply.register
def _(event: events.RequestAccepted, state: State) -> State:
    state = replace(state, last_request_number=max(state.last_request_number, event.number))
    if event.action == "transfer":  # the other job's request: what this job's user has requested stays
        if event.agreed:
            return replace(state, transfer_to=event.to)
        return state if event.to else replace(state, transfer_to="", why=state.end_why, hint="")
    # As it is stored: `Record.write` adds attempt and stage to an event only once it has the state after it.
    request = _merged(state.request, replace(event, attempt=state.attempt, stage=state.stage)).to_json()
    if event.action == "setup" and state.state != "pending":
        request = state.last_request  # the job runs for an earlier request, and that one still describes it
    scratch = state.scratch_after(event.action)
    backoff_until = 0.0 if event.backoff_skipped else state.backoff_until
    return replace(state, last_request=request, from_scratch=scratch, backoff_until=backoff_until)


def _merged(earlier: events.RequestAccepted | None, request: events.RequestAccepted) -> events.RequestAccepted:
    """Return a stop or delete together with the stop before it: the last of `release` and `keep` counts.

    What a restart keeps the machines for (`keep_for`) does not, once a stop has replaced its second part.
    """
    if earlier is None or earlier.action != "stop" or request.action not in {"stop", "delete"}:
        return request
    undecided = not (request.release or request.keep)
    release, keep = undecided and earlier.release, undecided and earlier.keep
    return replace(request, release=request.release or release, keep=request.keep or keep)

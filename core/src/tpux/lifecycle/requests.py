"""What the user wants of the job is heeded first, in whatever state it is."""

from __future__ import annotations

from tpux.lifecycle.context import JobContext
from tpux.lifecycle.setup import SetupRun
from tpux.store import requests
from tpux.store.requests import UserRequest


def heed(context: JobContext) -> None:
    """Take up the latest wish, if it is new and can be taken up in this state; else it stays.

    The deed comes before the word that it was heeded: a supervisor that is killed in between does it again,
    which changes nothing, and the other way round the wish would be lost.
    """
    wish = requests.read(context.record.directory)
    if wish is None or wish.id == context.state.last_request_id:
        return
    if wish.action in {"stop", "delete"}:
        _stop(context, wish)
    elif context.state.ended:
        _start_again(context, wish)
    elif context.state.state == "recovering" and wish.action == "resume":
        context.write("backoff-skipped")  # it need not wait for its backoff any longer
        _take_up(context, wish)
    elif context.state.state != "stopping":
        context.unlearn(SetupRun)  # it may have been for some of the modules only
        _take_up(context, wish)  # it runs already


def _take_up(context: JobContext, wish: UserRequest) -> None:
    context.write("request-accepted", action=wish.action, id=wish.id, **wish.options)


def _stop(context: JobContext, wish: UserRequest) -> None:
    state = context.state
    if not state.ended:
        if state.state != "stopping":
            context.move("stopping", why="stopping its programs")
    elif wish.action == "delete":
        if state.requested and context.job.tpu.release != "never":
            context.write("release-scheduled", release_at=context.clock.now())
    elif wish.options.get("release") and state.requested:
        context.write("release-scheduled", release_at=context.clock.now())
    elif wish.options.get("keep"):
        context.write("release-scheduled", release_at=None)
    _take_up(context, wish)


def _start_again(context: JobContext, wish: UserRequest) -> None:
    context.forget()
    context.read_again()
    context.move("pending", why=f"to {wish.action}")
    _take_up(context, wish)

"""What the user wants of the job is heeded first, in whatever state it is."""

from __future__ import annotations

from tpux.lifecycle.preparing import Preparation
from tpux.lifecycle.work import Work
from tpux.store import wanted
from tpux.store.wanted import Wish


def heed(work: Work) -> None:
    """Take up the latest wish, if it is new and can be taken up in this state; else it stays.

    The deed comes before the word that it was heeded: a supervisor that is killed in between does it again,
    which changes nothing, and the other way round the wish would be lost.
    """
    wish = wanted.read(work.record.directory)
    if wish is None or wish.serial == work.state.wanted:
        return
    if wish.want in {"stop", "delete"}:
        _stop(work, wish)
    elif work.state.ended:
        _start_again(work, wish)
    elif work.state.state == "recovering" and wish.want == "resume":
        work.write("hurried")  # it need not wait for its backoff any longer
        _take_up(work, wish)
    elif work.state.state != "stopping":
        work.unlearn(Preparation)  # it may have been for some of the modules only
        _take_up(work, wish)  # it runs already


def _take_up(work: Work, wish: Wish) -> None:
    work.write("wanted", want=wish.want, serial=wish.serial, **wish.options)


def _stop(work: Work, wish: Wish) -> None:
    state = work.state
    if not state.ended:
        if state.state != "stopping":
            work.move("stopping", why="stopping its programs")
    elif wish.want == "delete":
        if state.requested and work.job.tpu.release != "never":
            work.write("keep", until=work.clock.now())
    elif wish.options.get("release") and state.requested:
        work.write("keep", until=work.clock.now())
    elif wish.options.get("keep"):
        work.write("keep", until=None)
    _take_up(work, wish)


def _start_again(work: Work, wish: Wish) -> None:
    work.forget()
    work.read_again()
    work.move("pending", why=f"to {wish.want}")
    _take_up(work, wish)

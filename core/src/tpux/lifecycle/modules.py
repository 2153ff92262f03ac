"""The modules on one worker: checked, set up where the check failed, and checked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tpux import hookspecs
from tpux.failures import Failure
from tpux.hosts import Host
from tpux.lifecycle.stories import Story, patiently, walk
from tpux.lifecycle.work import Work
from tpux.machines import Worker
from tpux.readiness import BEING_SET_UP, ended_badly, fingerprint, mark_path, objection
from tpux.steps import Result, Step, Steps

RETRY_AFTER = 2.0
"""Seconds before a failed set-up is tried again; doubled each time."""
Failed = tuple[Step, Result]


def modules(work: Work) -> list[str]:
    """The modules that are prepared now: all, or those that `tpux setup` names."""
    only = cast("list[str]", (work.state.only_setup or {}).get("only"))
    return [word for word in work.job.modules if not only or word in only]


def workers(work: Work) -> list[Worker]:
    """The workers that are prepared now: all, or those that `tpux setup` names."""
    only = cast("list[int]", (work.state.only_setup or {}).get("workers"))
    return [worker for worker in work.allocation.workers if not only or worker.index in only]


def prepare(work: Work, worker: Worker) -> Story[Failure | None]:
    """Make one worker ready, module by module; the failure of the first that could not be set up."""
    for word in modules(work):
        if failure := (yield from _module(work, worker, word)):
            return failure
    return None


def _module(work: Work, worker: Worker, word: str) -> Story[Failure | None]:
    mark = fingerprint(work.job.sections.get(word))
    failed: Failed | None = None
    for number in range(1, work.job.setup.tries + 1):
        if number > 1:
            yield RETRY_AFTER * 2 ** (number - 2)
        if (yield from _is_ready(work, worker, word, mark, number)):
            return None
        # A mark that fits nothing stands until the set-up is through: a half-built worker is not ready.
        yield from _mark(work, worker, word, BEING_SET_UP)
        failed = yield from _take(work, worker, word, hookspecs.setup, number)
        if failed is None:
            failed = yield from _take(work, worker, word, hookspecs.check, number, again=True)
        if failed is None:
            yield from _mark(work, worker, word, mark)
            return None
    return _failure(work, worker, word, cast("Failed", failed))


def _is_ready(work: Work, worker: Worker, word: str, mark: bytes, number: int) -> Story[bool]:
    """Whether it was set up with this very config, or never by tpux, and its check succeeds."""
    found = yield from patiently(work, worker, lambda host: host.read((mark_path(word), 0))[0])
    if objection(found, mark) or (yield from _take(work, worker, word, hookspecs.check, number)) is not None:
        return False
    if found is None:
        yield from _mark(work, worker, word, mark)  # from now on a change of the config is noticed
    return True


def _take(
    work: Work, worker: Worker, word: str, hook: Callable[..., Steps], number: int, *, again: bool = False
) -> Story[Failed | None]:
    config = work.job.sections.get(word)
    steps = work.plugins.ask(word, hook, job=work.job, config=config, worker=worker)
    what = hook.__name__
    name = f"{word}-{what}-{number}" + ("-again" if again else "")
    header = f"round {work.state.round}, try {number}: {what} {word}" + (" again" if again else "")
    return (yield from walk(work, worker, steps, log=word, name=name, header=header))


def _mark(work: Work, worker: Worker, word: str, mark: bytes) -> Story[None]:
    def put(host: Host) -> None:
        host.put(mark, mark_path(word))

    yield from patiently(work, worker, put)


def _failure(work: Work, worker: Worker, word: str, failed: Failed) -> Failure:
    return Failure(
        "setup",
        worker=worker.index,
        evidence=f"{word}: {ended_badly(*failed)}",
        hint=f"tpux logs {work.state.id} --module {word} --worker {worker.index}",
        at=work.clock.now(),
    )


def solve(work: Work, worker: Worker, failure: Failure) -> Story[None]:
    """Let the solvers that know this failure at one worker, before the next attempt."""
    for word, steps in work.plugins.gather(hookspecs.solve, job=work.job, failure=failure, worker=worker):
        name = f"solve-{word}-{work.state.attempt}"
        yield from walk(work, worker, steps, log="solve", name=name)

"""The modules on one worker: checked, set up where the check failed, and checked again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tpux.lifecycle.context import JobContext
from tpux.lifecycle.tasks import WorkerTask, retry_unreachable, walk
from tpux.plugin import spec
from tpux.plugin.failures import Failure
from tpux.plugin.host import Host
from tpux.plugin.machines import Worker
from tpux.plugin.sections import Section
from tpux.plugin.steps import Put, Result, Step, Steps

RETRY_AFTER = 2.0
"""Seconds before a failed set-up is tried again; doubled each time."""
Failed = tuple[Step, Result]


def modules(context: JobContext) -> list[str]:
    """The modules that are prepared now: all, or those that `tpux setup` names."""
    only = cast("list[str]", (context.state.setup_only or {}).get("only"))
    return [word for word in context.job.modules if not only or word in only]


def workers(context: JobContext) -> list[Worker]:
    """The workers that are prepared now: all, or those that `tpux setup` names."""
    only = cast("list[int]", (context.state.setup_only or {}).get("workers"))
    return [worker for worker in context.allocation.workers if not only or worker.index in only]


def prepare(context: JobContext, worker: Worker) -> WorkerTask[Failure | None]:
    """Make one worker ready, module by module; the failure of the first that could not be set up."""
    for word in modules(context):
        if failure := (yield from _module(context, worker, word)):
            return failure
    return None


def _module(context: JobContext, worker: Worker, word: str) -> WorkerTask[Failure | None]:
    mark = fingerprint(context.job.sections.get(word))
    failed: Failed | None = None
    for number in range(1, context.job.setup.tries + 1):
        if number > 1:
            yield RETRY_AFTER * 2 ** (number - 2)
        if (yield from _is_ready(context, worker, word, mark, number)):
            return None
        # A mark that fits nothing stands until the set-up is through: a half-built worker is not ready.
        yield from _mark(context, worker, word, IN_PROGRESS)
        failed = yield from _take(context, worker, word, spec.setup, number)
        if failed is None:
            failed = yield from _take(context, worker, word, spec.check, number, again=True)
        if failed is None:
            yield from _mark(context, worker, word, mark)
            return None
    return _failure(context, worker, word, cast("Failed", failed))


def _is_ready(context: JobContext, worker: Worker, word: str, mark: bytes, number: int) -> WorkerTask[bool]:
    """Whether it was set up with this very config, or never by tpux, and its check succeeds."""
    found = yield from retry_unreachable(context, worker, lambda host: host.read((marker_path(word), 0))[0])
    if stale_reason(found, mark) or (yield from _take(context, worker, word, spec.check, number)) is not None:
        return False
    if found is None:
        yield from _mark(context, worker, word, mark)  # from now on a change of the config is noticed
    return True


def _take(
    context: JobContext, worker: Worker, word: str, hook: Callable[..., Steps], number: int, *, again: bool = False
) -> WorkerTask[Failed | None]:
    config = context.job.sections.get(word)
    steps = context.plugins.call_one(word, hook, job=context.job, config=config, worker=worker)
    what = hook.__name__
    name = f"{word}-{what}-{number}" + ("-again" if again else "")
    header = f"round {context.state.round}, try {number}: {what} {word}" + (" again" if again else "")
    return (yield from walk(context, worker, steps, log=word, name=name, header=header))


def _mark(context: JobContext, worker: Worker, word: str, mark: bytes) -> WorkerTask[None]:
    def put(host: Host) -> None:
        host.put(mark, marker_path(word))

    yield from retry_unreachable(context, worker, put)


def _failure(context: JobContext, worker: Worker, word: str, failed: Failed) -> Failure:
    return Failure(
        "setup",
        worker=worker.index,
        evidence=f"{word}: {describe_failure(*failed)}",
        hint=f"tpux logs {context.state.id} --module {word} --worker {worker.index}",
        at=context.clock.now(),
    )


def solve(context: JobContext, worker: Worker, failure: Failure) -> WorkerTask[None]:
    """Let the solvers that know this failure at one worker, before the next attempt."""
    for word, steps in context.plugins.call_all(spec.solve, job=context.job, failure=failure, worker=worker):
        name = f"solve-{word}-{context.state.attempt}"
        yield from walk(context, worker, steps, log="solve", name=name)


IN_PROGRESS = b"being set up\n"
"""The mark while a set-up is under way: a worker that is half prepared is not ready."""


def marker_path(word: str) -> str:
    """Where a module's mark is, from the worker's home."""
    return f".tpux/ready/{word}"


def fingerprint(section: Section | None) -> bytes:
    """The mark of a module's config and of the files that it names: when it changes, the set-up is due again.

    Of a file its content counts and not its place: every job has a copy of its own.
    """
    config = None if section is None else section.model_dump()
    told = json.dumps(config, sort_keys=True, default=_told)
    return f"{hashlib.sha256(told.encode()).hexdigest()}\n".encode()


def stale_reason(found: bytes | None, wanted: bytes) -> str:
    """What the mark on a worker says against it, nothing where it says nothing.

    Args:
        found: the mark there. None where there is none: somebody else may have prepared it, the check decides.
        wanted: the mark of the module's config.
    """
    if found is None or found == wanted:
        return ""
    if found == IN_PROGRESS:
        return "it is being set up, or that was broken off"
    return "its config has changed since it was set up"


def describe_failure(step: Step, result: Result) -> str:
    """How a step failed, in one line."""
    what = f"put {step.remote}" if isinstance(step, Put) else step.script.strip().splitlines()[0]
    last = result.text.splitlines()[-1:] or ["no output"]
    return f"`{what.removeprefix('# ')}` exited with {result.code}: {last[0]}"


def _told(value: object) -> str:
    if isinstance(value, Path) and value.is_file():
        return hashlib.sha256(value.read_bytes()).hexdigest()
    return str(value)

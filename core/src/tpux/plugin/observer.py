"""Observation of hook calls: who answered what in how much time, and the tracebacks of those that failed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from tpux import env
from tpux.errors import MASK, TpuxError, masked
from tpux.model.machines import Worker

if TYPE_CHECKING:
    from tpux.model.json import JsonValue

P = ParamSpec("P")
T = TypeVar("T")
Outcome = Literal["answered", "nothing", "failed", "closed"]


@dataclass(frozen=True)
class HookCall:
    """A call of a plugin's hook that has ended.

    Attributes:
        plugin: the plugin.
        hook: its hook.
        worker: the number of the worker that the hook was called for, None if for none.
        seconds: from the call to its end; of a generator to the end of its last step.
        own_seconds: how much of that the plugin's code took; the rest are the steps on the worker.
        steps: how many steps a generator has yielded, None if the answer was none.
        outcome: `nothing` if the answer was None, `closed` if a step failed and the generator was not continued.
        error: the message, if it failed.
        answer: what it returned; of a generator what it returned after the last step.
    """

    plugin: str
    hook: str
    worker: int | None
    seconds: float
    own_seconds: float
    steps: int | None
    outcome: Outcome
    error: str = ""
    answer: object = None

    def shown(self, secrets: Collection[str]) -> dict[str, JsonValue]:
        """Return the call as JSON: the answer as text of at most `MAX_ANSWER` bytes, without secrets.

        Args:
            secrets: what is masked; the values of `storage_options` are anyway.
        """
        times = {"seconds": round(self.seconds, 6), "own_seconds": round(self.own_seconds, 6)}
        text = masked(self._describe_answer(), secrets).encode(errors="replace")
        answer = text.decode() if len(text) <= MAX_ANSWER else f"{text[:MAX_ANSWER].decode(errors='ignore')}..."
        return {**vars(self), **times, "error": masked(self.error, secrets), "answer": answer}

    def _describe_answer(self) -> str:
        answer = self.answer
        if isinstance(answer, Mapping) and self.hook == "storage_options":
            answer = dict.fromkeys(answer, MASK)
        try:
            return "" if answer is None else repr(answer)
        except Exception as error:  # noqa: BLE001  (a plugin's own class)
            return f"{type(self.answer).__name__}, which cannot be shown: {error}"


MAX_ANSWER = 2048
"""Bytes of an answer that are shown."""


@dataclass(frozen=True)
class HookFailure:
    """An exception that a plugin's hook raised, or a wrong answer.

    Attributes:
        plugin: the plugin at fault.
        hook: the hook.
        message: as the user sees it.
        traceback: of the exception; "" for a wrong answer.
    """

    plugin: str
    hook: str
    message: str
    traceback: str


class Observer:
    """Receives hook calls. Its methods are called in the thread of the call, and raise nothing.

    Attributes:
        secrets: values that it shows nowhere.
    """

    secrets: Collection[str] = ()

    def called(self, call: HookCall) -> None:
        """Note a call that has ended."""

    def failed(self, failure: HookFailure) -> None:
        """Note that a hook has failed."""


def observe(
    observer: Observer, plugin: str, hook: str, arguments: Mapping[str, object], call: Callable[[], object]
) -> object:
    """Call a hook, and pass the call to the observer when it has ended.

    Args:
        observer: receives the call.
        plugin: the plugin.
        hook: its hook.
        arguments: of the hook.
        call: calls it.
    """
    return _Observation(observer, plugin, hook, arguments).of(call)


class _Observation:
    def __init__(self, observer: Observer, plugin: str, hook: str, arguments: Mapping[str, object]) -> None:
        worker = arguments.get("worker")
        self._observer = observer
        self._names = (plugin, hook, worker.index if isinstance(worker, Worker) else None)
        self._started = perf_counter()
        self._own = 0.0

    def of(self, call: Callable[[], object]) -> object:
        try:
            answer = self._timed(call)
        except TpuxError as error:
            self._end("failed", error=error.message)
            raise
        if isinstance(answer, Generator):
            return self._steps(answer)
        self._end("nothing" if answer is None else "answered", answer=answer)
        return answer

    def _steps(self, steps: Generator[object, object, object]) -> Generator[object, object, object]:
        sent: object = None
        count = 0
        outcome: Outcome = "closed"
        message, answer = "", None
        try:
            while True:
                try:
                    step = self._timed(steps.send, sent)
                except StopIteration as end:
                    outcome, answer = "answered", end.value
                    return answer
                except TpuxError as error:
                    outcome, message = "failed", error.message
                    raise
                count += 1
                sent = yield step
        finally:
            try:
                steps.close()
            except TpuxError as error:
                outcome, message = "failed", error.message
                raise
            finally:
                self._end(outcome, steps=count, error=message, answer=answer)

    def _timed(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        started = perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            self._own += perf_counter() - started

    def _end(self, outcome: Outcome, *, steps: int | None = None, error: str = "", answer: object = None) -> None:
        seconds = perf_counter() - self._started
        call = HookCall(*self._names, seconds, self._own, steps, outcome, error, answer)
        if env.trace():
            from tpux.console import say

            shown = call.shown(self._observer.secrets)
            worker = "" if call.worker is None else f" of worker {call.worker}"
            result = f"{outcome}: {shown['error'] or shown['answer']}".removesuffix(": ")
            say(f"trace: {call.plugin}: {call.hook}{worker}, {seconds:.3f} s, {result}")
        self._observer.called(call)

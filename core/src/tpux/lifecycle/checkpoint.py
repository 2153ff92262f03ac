"""Checkpoints in output directories that are URLs: plugins search for them, in a thread outside of the job's turns.

An error, a timeout, or no plugin for the scheme does not mean that there is no checkpoint: the job waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

from tpux import threads
from tpux.backoff import Backoff
from tpux.errors import TpuxError, plain_reason
from tpux.lifecycle.turn import Turn
from tpux.model.failures import Failure
from tpux.model.job import Checkpoint, Job
from tpux.plugin import spec
from tpux.plugin.manager import Plugins
from tpux.plugin.selected import selected_plugins

_log = logging.getLogger(__name__)
Answer = Checkpoint | Failure | None

SEARCH_TIMEOUT = 60.0
"""Seconds after which a search is given up and begun again. The first one may import a large library."""
GIVE_UP_AFTER = 3600.0
"""Seconds of unsuccessful searches after which the job fails."""
REPORT_AFTER = 3.0
"""Seconds after which a search that has not ended is what the job waits for."""
SEARCH_POLL = 0.1
RETRY_BACKOFF = Backoff(5, 300)
UNKNOWN = "checkpoints unknown"
"""A condition whose observed time is counted: the storage cannot say whether there is a checkpoint."""
INSTALL = "pip install tpux-plugin-storage"


class CheckpointSearch:
    """The search for the last of some output directories that has a checkpoint.

    Args:
        directories: URLs, the last attempt's first.

    Attributes:
        found: the directory that was found; None if none has a checkpoint, or it is not known yet.
        problem: why the last search gave no answer; "" before that.
        failure: why the search was given up; None if it was not.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        self.found: str | None = None
        self.problem = ""
        self.failure: Failure | None = None
        self._directories = directories
        self._search: _Search | None = None
        self._begun_at = self._begin_at = 0.0
        self._retries = 0

    def why(self, now: float) -> str:
        """Return what the job waits for: why the last search gave no answer, or one that takes long; "" before that."""
        if self.problem:
            return f"{self.problem}; retrying"
        if self._search is None or now - self._begun_at < REPORT_AFTER:
            return ""
        return f"looking for checkpoints in {self._directories[0]}"

    def advance(self, turn: Turn) -> float | None:
        """Begin a search, or look whether it has ended.

        Returns:
            Seconds until the next call; None if the answer is known, or the search was given up.

        Raises:
            PluginError: a plugin's `storage_options` failed.
        """
        now = turn.clock.monotonic()
        if self._search is None:
            if now < self._begin_at:
                return self._begin_at - now
            self._search, self._begun_at = _Search(_searches(turn, self._directories)), now
        if self._search.task.alive:
            late = now - self._begun_at >= SEARCH_TIMEOUT
            answer = Failure("infra", evidence=f"no answer within {SEARCH_TIMEOUT:.0f} s")
            return self._no_answer(turn, answer) if late else SEARCH_POLL
        if isinstance(self._search.answer, Failure):
            return self._no_answer(turn, self._search.answer)
        turn.workers.observed.end(UNKNOWN)
        self.found = self._search.answer.directory or None
        return None

    def _no_answer(self, turn: Turn, answer: Failure) -> float | None:
        """Decide when to search again; the thread of a search that has not ended is abandoned."""
        self.problem = f"cannot look for checkpoints in {self._directories[0]}: {answer.evidence}"
        _log.warning("job %s: %s", turn.state.id, self.problem)
        delay = RETRY_BACKOFF.delay(self._retries)
        self._retries += 1
        self._search, self._begin_at = None, turn.clock.monotonic() + delay
        if turn.workers.observed.observe(UNKNOWN, delay + SEARCH_TIMEOUT) < GIVE_UP_AFTER:
            return delay
        hint = answer.hint or f"check the bucket and the credentials, then: tpux resume {turn.number}"
        self.failure = Failure(answer.kind, evidence=self.problem, hint=hint, at=turn.clock.now())
        return None


class _Search:
    """One search, in a thread. Its errors are kept: there is nobody to raise them to."""

    def __init__(self, searches: Sequence[Callable[[], Answer]]) -> None:
        self.answer: Checkpoint | Failure = Failure("infra", evidence="no installed plugin can open it", hint=INSTALL)
        self._searches = searches
        self.task = threads.pool().submit(self._run)

    def _run(self) -> None:
        """Call the plugins until one answers."""
        try:
            answers = (search() for search in self._searches)
            self.answer = next((answer for answer in answers if answer is not None), self.answer)
        except BaseException as error:  # noqa: BLE001  (whatever it is, the answer is unknown)
            reason = error.message if isinstance(error, TpuxError) else plain_reason(error)
            self.answer = Failure("infra", evidence=reason[:300])


def _searches(turn: Turn, directories: Sequence[str]) -> list[Callable[[], Answer]]:
    """Return the search of each plugin that has one."""
    job, plugins, options = turn.job, turn.plugins, storage_options(turn, directories[0])

    def search(name: str) -> Answer:
        answer = plugins.call_one(name, spec.find_checkpoint, job=job, directories=directories, options=options)
        if isinstance(answer, Checkpoint) and answer.directory not in {"", *directories}:
            raise plugins.guard.wrong_answer(spec.find_checkpoint, name, f"{answer.directory!r} was not asked for")
        return cast("Answer", answer)

    names = plugins.implementing(spec.find_checkpoint)
    return [partial(search, name) for name in names if name not in job.disabled_plugins]


def storage_options(turn: Turn, directory: str) -> Mapping[str, object]:
    """Return the first options that a selected plugin has for a URL, such as the job's credentials; none for a path."""
    scheme, url, _ = directory.partition("://")
    return options_of(turn.job, turn.plugins, scheme) if url else {}


def options_of(job: Job, plugins: Plugins, scheme: str) -> Mapping[str, object]:
    """Return the first options that a selected plugin has for a scheme."""
    answers = (plugins.call_one(name, spec.storage_options, job=job, scheme=scheme) for name in selected_plugins(job))
    return next((options for options in answers if options is not None), {})

"""Output directories that are URLs, such as `gs://bucket/runs`: the library for them, and the search for checkpoints.

Core knows fsspec alone, whose libraries know the schemes (gcsfs: `gs`). A search takes place in a thread of its own and
outside of the job's turns. An error or a timeout does not mean that there is no checkpoint: the job waits.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tpux.backoff import Backoff
from tpux.errors import TpuxError, plain_reason
from tpux.lifecycle.turn import Turn
from tpux.model.failures import Failure, FailureKind, Finding
from tpux.model.job import Job, is_url
from tpux.plugin import spec
from tpux.plugin.selected import selected_plugins

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_log = logging.getLogger(__name__)

SEARCH_TIMEOUT = 30.0
"""Seconds after which a search is given up and begun again."""
LOAD_TIMEOUT = 600.0
"""Seconds that loading the library may take, which says nothing about the storage."""
GIVE_UP_AFTER = 3600.0
"""Seconds of unsuccessful searches after which the job fails."""
SAY_AFTER = 3.0
"""Seconds after which a search that has not ended is what the job waits for."""
SEARCH_POLL = 0.1
RETRY_BACKOFF = Backoff(5, 300)
UNKNOWN = "checkpoints unknown"
"""A condition whose observed time is counted: the storage cannot say whether there is a checkpoint."""
_ALMOST_URL = re.compile(r"(gs|gcs|s3|az|abfs|file|https?):(?!//)", re.IGNORECASE)
_AUTH = re.compile(r"\b(401|403|forbidden|unauthorized|permission|denied|credentials?|anonymous)\b", re.IGNORECASE)


def check_output_dir(job: Job) -> list[Finding]:
    """Return why the job's `output_dir` cannot be used, if it is a URL: its scheme's library may be missing."""
    url, where = job.job.output_dir or "", "job.output_dir"
    if _ALMOST_URL.match(written := url.removeprefix("~/")):
        hint = "the URL of a directory in a bucket is gs://BUCKET/DIRECTORY"
        return [Finding("error", f"{written!r} would be a directory of that name on the workers", where, hint)]
    if not is_url(url):
        return []
    from fsspec.registry import known_implementations

    scheme = _scheme(url)
    if scheme in {"file", "local", "memory"}:
        hint = "write a path on the workers without a scheme"
        return [Finding("error", f"{scheme}:// would be a directory of this machine", where, hint)]
    if not url.partition("://")[2].partition("/")[0]:
        return [Finding("error", f"{url!r} names no bucket", where, f"write {scheme}://BUCKET/DIRECTORY")]
    if scheme in {"http", "https", "data"}:
        return [Finding("error", f"nothing can be stored at {scheme}://", where, "gs:// is Google Cloud Storage")]
    if (known := known_implementations.get(scheme)) is None:
        hint = "gs:// is Google Cloud Storage; a mounted bucket is a path"
        return [Finding("error", f"unknown scheme {scheme}://", where, hint)]
    if find_spec(str(known["class"]).partition(".")[0]) is None:  # not imported: that may take seconds
        hint = str(known.get("err") or f"install the library of {known['class']}")
        return [Finding("error", f"the library for {scheme}:// is not installed", where, hint)]
    return []


def _scheme(url: str) -> str:
    return url.partition("://")[0]


class CheckpointSearch:
    """The search for the last of some output directories that has a checkpoint.

    Args:
        directories: URLs, the last attempt's first.
        pattern: `command.checkpoint`; None looks for anything.

    Attributes:
        found: the directory that was found; None if none has a checkpoint, or it is not known yet.
        problem: why the last search gave no answer; "" before that.
        failure: why the search was given up; None if it was not.
    """

    def __init__(self, directories: Sequence[str], pattern: str | None) -> None:
        self.found: str | None = None
        self.problem = ""
        self.failure: Failure | None = None
        self._directories = directories
        self._pattern = pattern or "*"
        self._search: _Search | None = None
        self._begun_at = self._begin_at = self._timeout_at = 0.0
        self._retries = 0

    def why(self, now: float) -> str:
        """Return what the job waits for: why the last search gave no answer, or one that takes long; "" before that."""
        if self.problem:
            return f"{self.problem}; retrying"
        if self._search is None or now - self._begun_at < SAY_AFTER:
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
            self._search = _Search(self._directories, self._pattern, _options(turn, self._directories))
            self._search.start()
            self._begun_at, self._timeout_at = now, now + SEARCH_TIMEOUT
        if self._search.is_alive():
            if not self._search.loaded and now - self._begun_at < LOAD_TIMEOUT:
                self._timeout_at = now + SEARCH_TIMEOUT
            return SEARCH_POLL if now < self._timeout_at else self._no_answer(turn, None)
        if self._search.error is not None:
            return self._no_answer(turn, self._search.error)
        turn.workers.observed.end(UNKNOWN)
        self.found = self._search.found
        return None

    def _no_answer(self, turn: Turn, error: BaseException | None) -> float | None:
        """Decide when to search again; the thread of a search that has not ended is abandoned."""
        text = f"no answer within {SEARCH_TIMEOUT:.0f} s" if error is None else _reason(error)
        self.problem = f"cannot look for checkpoints in {self._directories[0]}: {text}"
        _log.warning("job %s: %s", turn.state.id, self.problem)
        delay = RETRY_BACKOFF.delay(self._retries)
        self._retries += 1
        self._search, self._begin_at = None, turn.clock.monotonic() + delay
        if turn.workers.observed.observe(UNKNOWN, delay + SEARCH_TIMEOUT) < GIVE_UP_AFTER:
            return delay
        kind: FailureKind = "auth" if _is_auth(error) else "infra"
        hint = f"check the bucket and the credentials, then: tpux resume {int(turn.state.id)}"
        self.failure = Failure(kind, evidence=self.problem, hint=hint, at=turn.clock.now())
        return None


class _Search(threading.Thread):
    """One search. Its errors are kept: a thread has nobody to raise them to."""

    def __init__(self, directories: Sequence[str], pattern: str, options: Mapping[str, object]) -> None:
        super().__init__(name="checkpoints", daemon=True)
        self.loaded = False
        self.found: str | None = None
        self.error: BaseException | None = None
        self._directories = directories
        self._pattern = pattern
        self._options = options

    def run(self) -> None:
        """Search."""
        try:
            import fsspec

            options = {**self._options, "skip_instance_cache": True, "use_listings_cache": False}
            protocol = str(options.pop("protocol", _scheme(self._directories[0])))
            fsspec.get_filesystem_class(protocol)
            self.loaded = True
            storage = fsspec.filesystem(protocol, **options)
            for directory in self._directories:
                if _has_match(storage, directory, self._pattern):
                    self.found = directory
                    return
            _check_bucket(storage, self._directories[0])
        except BaseException as error:  # noqa: BLE001  (a library's; whatever it is, the answer is unknown)
            self.error = error


def _has_match(storage: AbstractFileSystem, directory: str, pattern: str) -> bool:
    """Return whether anything below a directory matches a shell pattern.

    One listing for each level that has a wildcard: a checkpoint may be thousands of objects, which `glob` would list.
    """
    paths, listed = [directory.partition("://")[2].rstrip("/")], False
    for part in filter(None, pattern.split("/")):
        listed = re.search(r"[*?\[]", part) is not None
        if listed:
            paths = [name for path in paths for name in _list(storage, path) if _matches(name, part)]
        else:
            paths = [f"{path}/{part}" for path in paths]
    return bool(paths) if listed else any(_exists(storage, path) for path in paths)


def _check_bucket(storage: AbstractFileSystem, url: str) -> None:
    """Check that the bucket of a URL exists: without one, nothing is known about checkpoints.

    Raises:
        TpuxError: there is no such bucket.
        Exception: it cannot be asked. A bucket whose root may not be listed exists: the permissions may be for a
            directory in it, which has been searched.
    """
    bucket = url.partition("://")[2].partition("/")[0]
    try:
        storage.ls(bucket, detail=False, refresh=True)
    except FileNotFoundError as error:
        raise TpuxError(f"there is no bucket {bucket}") from error
    except Exception as error:
        if not _is_auth(error):
            raise


def _matches(name: str, part: str) -> bool:
    name = name.rstrip("/").rpartition("/")[2]
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


def _list(storage: AbstractFileSystem, path: str) -> list[str]:
    try:
        return [str(name) for name in storage.ls(path, detail=False, refresh=True)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _exists(storage: AbstractFileSystem, path: str) -> bool:
    try:
        storage.info(path)  # not `exists`, which takes every error for a no
    except FileNotFoundError:
        return False
    return True


def _options(turn: Turn, directories: Sequence[str]) -> Mapping[str, object]:
    """Return the first options that a selected plugin has for the scheme, such as the job's credentials."""
    scheme = _scheme(directories[0])
    for name in selected_plugins(turn.job):
        options = turn.plugins.call_one(name, spec.storage_options, job=turn.job, scheme=scheme)
        if options is not None:
            return options
    return {}


def _is_auth(error: BaseException | None) -> bool:
    return isinstance(error, PermissionError) or (error is not None and _AUTH.search(str(error)) is not None)


def _reason(error: BaseException) -> str:
    return (error.message if isinstance(error, TpuxError) else plain_reason(error))[:300]

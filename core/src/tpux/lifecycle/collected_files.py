"""The files of `command.collect`: fetched into the job's directory when an attempt has ended, before its machines go.

What has arrived of a file is below `collected/ATTEMPT/worker-N.part`, named after its path, size and time: a later
supervisor, or another connection, continues from its length. A complete file is renamed to its place. The fetch is
bounded: machines are never held for one that does not end, and the event at its end says what is missing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import re
import shutil
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path

from tpux.console import format_size
from tpux.errors import TpuxError, plain_reason
from tpux.lifecycle import policy
from tpux.lifecycle.programs import workers
from tpux.lifecycle.turn import Turn
from tpux.model.events import FilesCollected
from tpux.model.host import CHUNK_SIZE, OpenHost
from tpux.model.job import Command
from tpux.model.machines import Worker
from tpux.model.steps import sh
from tpux.plugin import spec
from tpux.plugin.selected import selected_plugins
from tpux.remote.tasks import TIME_SLICE, TaskGroup, WorkerTask, retry_unreachable
from tpux.remote.workers import Patience
from tpux.store import files, requests

TIMEOUT = 3600.0
"""Seconds that the fetch may take in all."""
STALLED_AFTER = 120.0
"""Seconds without a byte from any worker after which it is given up."""
UNREACHABLE_FOR = 60.0
"""Observed seconds for which a worker is tried again that does not answer; one of lost machines is tried twice."""
REPORT_AFTER, REPORT_INTERVAL = 2.0, 10.0
"""Seconds after which the job's `why` says that files are fetched, and between two reports of how much."""
MOST_FILES = 10_000
"""Files of one pattern that are looked at on each worker."""
MOST_REPORTED = 20
"""Files that are named which were not fetched."""
FILES_AT_ONCE = 64
"""Small files that are read in one exchange."""
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
_WILDCARD = re.compile(r"[*?\[]")
_TYPES = {"o": "it is a link that leads out of the directory", "l": "it is a link", "u": "it cannot be read"}


@dataclass(frozen=True)
class _File:
    """A file on a worker: where it is, where its copy is below the worker's directory, its size and its time."""

    worker: int
    path: str
    copy: str
    size: int
    time: str

    @property
    def time_ns(self) -> int:
        return int(Decimal(self.time) * 10**9)

    def missing(self, why: str) -> str:
        return f"worker {self.worker}: {self.copy} ({format_size(self.size)}): {why}"


@dataclass(frozen=True)
class _Found:
    """What a worker has: the files, what is not fetched and why, and the numbers of the patterns that match."""

    files: tuple[_File, ...]
    skipped: tuple[str, ...]
    matched: frozenset[int]


@dataclass
class FileCollection:
    """Fetches the files of the attempt that has ended. All of its memory may be lost: it looks for them again.

    `dataclasses.replace` begins again; nothing that is on disk is fetched again.

    Attributes:
        began_at: since when files are fetched (monotonic).
    """

    began_at: float | None = None
    _search: TaskGroup[_Found | str] | None = field(default=None, init=False)
    _fetch: TaskGroup[list[str]] | None = field(default=None, init=False)
    _chosen: list[_File] = field(default_factory=list, init=False)
    _missing: list[str] = field(default_factory=list, init=False)
    _done: set[_File] = field(default_factory=set, init=False)
    _bytes: dict[int, int] = field(default_factory=dict, init=False)
    _last: tuple[int, float] = field(default=(0, 0.0), init=False)
    """How many bytes have arrived, and since when it is so many."""
    _report_at: float = field(default=REPORT_AFTER, init=False)

    def advance(self, turn: Turn) -> float | None:
        """Continue, if files of the attempt are to be fetched.

        Returns:
            Seconds until the next call; None when nothing is left to do.
        """
        state = turn.state
        collects = state.run.workers and state.run.ended and state.files_collected < state.attempt
        if not collects or state.machines is None or not turn.job_to_end().command.collect:
            return None
        self.began_at = turn.clock.monotonic() if self.began_at is None else self.began_at
        try:
            delay = self._advance(turn)
        except TpuxError as error:  # of a plugin, or its config: the machines are not held for that
            self._missing.append(error.message)
            delay = None
        if delay is not None:
            if not (late := self._why_given_up(turn)):
                return delay
            self._missing += [late, *(file.missing("not fetched") for file in self._chosen if file not in self._done)]
        self._finish(turn)
        return None

    def _advance(self, turn: Turn) -> float | None:
        failure = turn.state.failure
        lost = failure is not None and failure.kind in policy.MACHINE_FAILURES
        turn.workers.patience = Patience(UNREACHABLE_FOR, unreachable_once=lost, waits_for_transport=False)
        if self._search is None:
            silent = turn.workers.unreachable if lost else {}
            self._missing += [f"worker {index}: it does not answer" for index in silent]
            tasks = {index: _search(turn, worker) for index, worker in workers(turn, without=silent).items()}
            self._search = TaskGroup(turn.workers, tasks, "a search for the files of command.collect")
        if self._fetch is None:
            if (delay := self._search.advance()) is not None:
                return delay
            self._choose(turn, self._search)
            every = turn.machines.workers
            chosen = {index: [file for file in self._chosen if file.worker == index] for index in self._search.results}
            fetches = {index: self._fetch_files(turn, every[index], found) for index, found in chosen.items() if found}
            self._fetch = TaskGroup(turn.workers, fetches, "a fetch of the files of command.collect")
        if (delay := self._fetch.advance()) is not None:
            self._report(turn)
            return delay
        self._missing += [text for texts in self._fetch.results.values() for text in texts]
        self._missing += _unanswered(self._fetch)
        return None

    def _choose(self, turn: Turn, search: TaskGroup[_Found | str]) -> None:
        """Choose which of the files are fetched: in the order of workers and names, as many as the limit allows."""
        section = turn.job.command
        found = {index: one for index, one in sorted(search.results.items()) if isinstance(one, _Found)}
        failed = [f"worker {index}: {one}" for index, one in search.results.items() if isinstance(one, str)]
        self._missing += failed + _unanswered(search)
        matched = frozenset[int]().union(*(one.matched for one in found.values()))
        unmatched = [pattern for number, pattern in enumerate(section.collect) if number not in matched]
        self._missing += [f"{pattern}: no file matches" for pattern in unmatched if found]
        left = section.collect_limit
        for one in found.values():
            self._missing += one.skipped
            for file in sorted(one.files, key=lambda file: file.copy):
                if file.size > left:
                    self._missing.append(file.missing(_over_limit(section.collect_limit)))
                else:
                    self._chosen.append(file)
                    left -= file.size

    def _why_given_up(self, turn: Turn) -> str:
        now, arrived = turn.clock.monotonic(), sum(self._bytes.values())
        if arrived != self._last[0] or not self._last[1]:
            self._last = (arrived, now)
        if now - self._last[1] > STALLED_AFTER:
            return f"given up: no byte has arrived for {STALLED_AFTER:.0f} s"
        return f"given up after {TIMEOUT:.0f} s" if now - (self.began_at or now) > TIMEOUT else ""

    def _report(self, turn: Turn) -> None:
        now = turn.clock.monotonic() - (self.began_at or 0.0)
        if now < self._report_at:
            return
        self._report_at = now + REPORT_INTERVAL
        arrived, every = sum(self._bytes.values()), sum(file.size for file in self._chosen)
        prefix = f"{requests.STOPPING}: " if turn.state.state == "stopping" else ""
        turn.waiting(f"{prefix}fetching the files of command.collect, {format_size(arrived)} of {format_size(every)}")

    def _finish(self, turn: Turn) -> None:
        directory = turn.record.collected(turn.state.attempt)
        for worker in turn.state.run.workers:
            shutil.rmtree(directory / f"worker-{worker}.part", ignore_errors=True)
        for text in self._missing:
            turn.log(f"command.collect: {text}")
        said = self._missing[:MOST_REPORTED]
        if more := len(self._missing) - len(said):
            said.append(f"{more} more: {turn.record.directory}/logs/tpu.log")
        turn.write(
            FilesCollected(
                attempt=turn.state.attempt,
                directory=str(directory),
                files=len(self._done),
                size=sum(file.size for file in self._done),
                missing=tuple(said),
            )
        )

    # --- the files of one worker ----------------------------------------------------------------

    def _fetch_files(self, turn: Turn, worker: Worker, chosen: Sequence[_File]) -> WorkerTask[list[str]]:
        """Fetch files of a worker; return which could not be fetched, and why."""
        left, problems = deque(chosen), list[str]()
        directory = turn.record.collected(turn.state.attempt)

        def fetch_some(host: OpenHost) -> None:
            began = turn.clock.monotonic()
            while left and turn.clock.monotonic() - began < TIME_SLICE:
                problems.extend(self._fetch_batch(host, left, directory))

        try:
            while left:
                yield from retry_unreachable(turn.workers, worker, fetch_some)
                yield 0.0
        except TpuxError as error:  # unreachable, or it cannot read
            problems += [f"worker {worker.index}: {error.message}", *(file.missing("not fetched") for file in left)]
        except OSError as error:  # else the step would be taken again, without end
            problems += [file.missing(_unwritable(error)) for file in left]
        return problems

    def _fetch_batch(self, host: OpenHost, left: deque[_File], directory: Path) -> Iterator[str]:
        """Read the next files, or the next part of a large one; yield what cannot be fetched."""
        batch, size = list[tuple[_File, Path, int]](), 0
        for file in islice(left, FILES_AT_ONCE):
            name = hashlib.sha256(f"{file.path} {file.size} {file.time}".encode()).hexdigest()[:32]
            part = directory / f"worker-{file.worker}.part" / name
            offset = files.length(part)
            size += file.size - offset
            if batch and size > CHUNK_SIZE:
                break
            batch.append((file, part, offset))
        missing = [(file, part, offset) for file, part, offset in batch if not self._is_fetched(file, directory)]
        read = host.read(*((file.path, offset) for file, _, offset in missing)) if missing else []
        contents = dict(zip((file for file, _, _ in missing), read, strict=True))
        for file, part, offset in batch:
            problem = ""
            try:
                if file in contents and not self._keep(file, part, offset, contents[file], directory):
                    continue
                self._done.add(file)
            except EOFError:
                problem = "it has become shorter, or was removed"
            except OSError as error:
                problem = _unwritable(error)
                if error.errno in _FULL_DISK:
                    yield from (one.missing(problem) for one in left)
                    left.clear()
                    return
            left.remove(file)
            if problem:
                yield file.missing(problem)

    def _is_fetched(self, file: _File, directory: Path) -> bool:
        """Return whether an earlier supervisor has fetched the file."""
        try:
            found = _copy(file, directory).lstat()
        except OSError:
            return False
        if (found.st_size, found.st_mtime_ns) != (file.size, file.time_ns):
            return False
        self._bytes[file.worker] = self._bytes.get(file.worker, 0) + file.size
        return True

    def _keep(self, file: _File, part: Path, offset: int, content: bytes | None, directory: Path) -> bool:
        """Append what was read of a file, and return whether it is complete, and in its place.

        Raises:
            EOFError: the worker does not have all of it any more.
            OSError: it cannot be written.
        """
        if content is None or (not content and offset < file.size):
            raise EOFError
        part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        piece = content[: file.size - offset]
        files.append_output(part, piece)
        self._bytes[file.worker] = self._bytes.get(file.worker, 0) + len(piece)
        if offset + len(piece) < file.size:
            return False
        copy = _copy(file, directory)
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.utime(part, ns=(file.time_ns, file.time_ns))
        files.rename(part, copy)
        return True


def _copy(file: _File, directory: Path) -> Path:
    return directory / f"worker-{file.worker}" / file.copy


def _unwritable(error: OSError) -> str:
    return f"it cannot be written here: {plain_reason(error)}"


def _over_limit(limit: int) -> str:
    return f"more than is left of command.collect_limit, {format_size(limit)}"


def _unanswered(group: TaskGroup[_Found | str] | TaskGroup[list[str]]) -> list[str]:
    return [f"worker {index}: {error}" for index, error in sorted(group.unreachable.items())]


# --- the search ---------------------------------------------------------------------------------


def _search(turn: Turn, worker: Worker) -> WorkerTask[_Found | str]:
    """Return what a worker has; text if it cannot say."""
    patterns = turn.job.command.collect
    places = [_place(pattern, _program_directory(turn, worker)) for pattern in patterns]
    limit = MOST_FILES + 2  # beside the directory and the file with which they are too many
    look = "look {n} {base} {rest} {outside} | head -zn {limit}"
    looks = [
        sh(look, n=n, base=base, rest=rest, outside="out" if _WILDCARD.search(rest) else "in", limit=limit)
        for n, (base, rest, _) in enumerate(places)
    ]
    script = _LOOK + "\n".join(look.script for look in looks)
    found = yield from retry_unreachable(turn.workers, worker, lambda host: host.run(script))
    if not found.ok:
        return f"the files cannot be listed: {found.text.rpartition(chr(10))[2]}"
    return _read(found.output, worker.index, [copy for _, _, copy in places])


def _program_directory(turn: Turn, worker: Worker) -> str:
    """Return where the program starts on a worker: in a container too, what its paths are relative to."""
    made, job = Command(argv=("true",), script="true"), turn.job
    for name in selected_plugins(job):
        config = job.sections.get(name)
        hook = spec.prepare_command
        answer = turn.plugins.call_one(name, hook, job=job, command=made, config=config, worker=worker)
        made = made if answer is None else answer
    return made.cwd


def _place(pattern: str, directory: str) -> tuple[str, str, str]:
    """Return where a pattern is looked for, relative to the home directory, the rest of it, and where copies go.

    What stands before the first wildcard is the user's own word: links in it are followed, wherever they lead.
    """
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    home = parts[:1] == ["~"]
    parts = parts[home:]
    count = next((n for n, part in enumerate(parts) if _WILDCARD.search(part)), len(parts))
    fixed = "/".join(parts[: min(count, len(parts) - 1)])
    rest = "/".join(parts[min(count, len(parts) - 1) :])
    if pattern.startswith("/"):
        return f"/{fixed}", rest, fixed
    return posixpath.join(".", "" if home else directory, fixed), rest, posixpath.join("home", fixed) if home else fixed


def _read(output: bytes, worker: int, copies: Sequence[str]) -> _Found:
    """Read what `_LOOK` has printed.

    Args:
        output: that.
        worker: the worker's number.
        copies: where the copies of each pattern's files go.
    """
    base, found, skipped, matched = "", dict[str, _File](), list[str](), Counter[int]()
    for record in output.split(b"\0")[:-1]:
        kind, size, time, number, name = (field.decode(errors="replace") for field in record.split(b" ", 4))
        if kind == "b":
            base = name
            continue
        matched[int(number)] += 1
        if matched[int(number)] > MOST_FILES:
            what = copies[int(number)] or "/"
            skipped.append(
                f"worker {worker}: more than {MOST_FILES} files match in {what}; the others were not fetched"
            )
            continue
        name = name.removeprefix("./")
        copy = posixpath.join(copies[int(number)], name)
        file = _File(worker, f"{base.rstrip('/')}/{name}", copy, int(size), time)
        if kind != "f":
            skipped.append(f"worker {worker}: {copy}: {_TYPES.get(kind, 'it is no regular file')}")
        elif "\ufffd" in file.path or ".." in file.path.split("/"):
            skipped.append(file.missing("its name is not valid UTF-8"))
        elif found.setdefault(copy, file).path != file.path:
            skipped.append(file.missing(f"{found[copy].path} has the same place"))
    return _Found(tuple(found.values()), tuple(skipped), frozenset(matched))


# Prints records that end with a NUL: a letter (the type of a file as `find` has it, `u` for one that cannot be read,
# `o` for a link that leads out, `b` for the directory itself), size, time, the pattern's number, the path. The pattern
# is expanded by the worker's shell, with IFS empty so that it is never split into words. What it matches is below `./`,
# so that no name looks like an option. Of a directory all files in it count; links in it are not followed. What a link
# out of the directory counts as is the fourth argument: in a pattern without wildcards it is the user's own word.
_LOOK = r"""
IFS=; unset CDPATH
matches() {
  for match in ./$pattern; do
    at=$match kind=in
    while [ "$at" != . ]; do
      if [ -L "$at" ]; then kind=link; fi
      at=${at%/*}
    done
    if [ "$kind" = link ]; then
      case $(readlink -f -- "$match")/ in "$base"/*) kind=in ;; *) kind=$outside ;; esac
    elif ! [ -e "$match" ]; then
      continue
    fi
    if [ "$kind" = "$1" ]; then printf '%s\0' "$match"; fi
  done
}
look() (
  cd -- "$2" 2>/dev/null || exit 0
  base=$(pwd -P) pattern=$3 outside=$4
  printf 'b 0 0 %s %s\0' "$1" "$base"
  base=${base%/}
  matches out | xargs -0r printf "o 0 0 $1 %s\\0"
  matches in | xargs -0r sh -c 'exec find -H "$@" ! -type d \
    \( -type f ! -readable -printf u -o -printf %y \) -printf " %s %T@ $0 %p\0"' "$1"
)
"""

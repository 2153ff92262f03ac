"""What plugins keep on this machine for jobs, beside the jobs' directories: its size, and its removal."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tpux.errors import TpuxError
from tpux.plugin import spec
from tpux.store import files
from tpux.store.locks import Lock

if TYPE_CHECKING:
    from tpux.model.json import JsonValue
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux.store.record import Record

    Answers = dict[str, dict[str, JsonValue]]

_log = logging.getLogger(__name__)
LOCK = "lock"
"""The file in a plugin's directory whose lock keeps core from deleting anything there; it is never deleted."""
KEPT_FOR = 3600.0
"""Seconds since its last change for which a file is kept that no job uses: `resolve` may have made it for a new one."""
_OF_CORE = frozenset({"jobs", "supervisor", "machines"})
"""The directories in `TPUX_HOME` that belong to no plugin, whatever its name."""


def remove_unused(store: Store, plugins: Plugins) -> None:
    """Delete the files that plugins keep and no job uses, while no job can be created. A failure is logged.

    Nothing is deleted if the config of any job cannot be read: what that job uses is unknown. For the same reason
    nothing of a plugin is whose answer is wrong.
    """
    names = plugins.implementing(spec.stored_files)
    try:
        with store.creation_lock():
            records = [record for user in store.users() for record in store.records(user)] if names else []
            answers = [each for record in records for each in _answers(record)]
            for name in names:
                try:
                    _remove_unused_of(store, plugins, name, [each[name] for each in answers if name in each])
                except (TpuxError, OSError) as error:
                    _log.warning("what no job uses of plugin %s is not removed: %s", name, error)
    except (TpuxError, OSError) as error:
        _log.warning("what no job uses is not removed: %s", error)


def _remove_unused_of(store: Store, plugins: Plugins, name: str, answers: Iterable[Mapping[str, JsonValue]]) -> None:
    """Delete the files in a plugin's directory that belong to none of these answers of its `resolve`.

    Raises:
        TpuxError: the plugin did not say which files do; nothing was deleted.
        OSError: a file cannot be deleted.
    """
    directory = Path(os.path.normpath(store.home / name))
    if not directory.is_dir() or name in _OF_CORE:
        return
    lock = Lock(directory / LOCK)
    if not lock.acquire():
        _log.info("plugin %s uses its files: what no job uses is removed later", name)
        return
    try:
        files.refuse_mounts(directory)
        there = [Path(parent, file) for parent, _, names in os.walk(directory) for file in names]
        different = {json.dumps(answer, sort_keys=True): answer for answer in answers}  # many jobs share a snapshot
        used = {path for answer in different.values() for path in _stored_files(store, plugins, name, answer)}
        changed_before = time.time() - KEPT_FOR
        for path in there:
            if path != lock.path and used.isdisjoint({path, *path.parents}) and path.lstat().st_mtime < changed_before:
                path.unlink()
    finally:
        lock.release()


def disk_usage(store: Store, record: Record, plugins: Plugins) -> int:
    """Return how many bytes a job takes on this machine, with what plugins keep for it.

    Raises:
        TpuxError: the job's config cannot be read, or a plugin failed.
    """
    answers = list(_answers(record))
    kept = {
        path
        for name in plugins.implementing(spec.stored_files)
        for each in answers
        if name in each
        for path in _stored_files(store, plugins, name, each[name])
    }
    return sum(map(_size, [record.directory, *kept]))


def _size(path: Path) -> int:
    return sum(files.length(one) for one in [path, *path.rglob("*")] if one.is_file() and not one.is_symlink())


def _stored_files(store: Store, plugins: Plugins, name: str, resolved: Mapping[str, JsonValue]) -> set[Path]:
    """Return the files that a plugin keeps for a job.

    Raises:
        TpuxError: the plugin failed, or named a file that is not below its own directory.
    """
    directory = Path(os.path.normpath(store.home / name))
    answer = plugins.call_one(name, spec.stored_files, resolved=resolved) or ()
    found = {Path(os.path.normpath(path)) for path in answer}
    if outside := [path for path in found if directory not in path.parents]:
        problem = f"expected files below {directory}, got {outside[0]}"
        raise plugins.guard.wrong_answer(spec.stored_files, name, problem)
    return found


def _answers(record: Record) -> Iterator[Answers]:
    """Yield what `resolve` returned for a job: for each of its configs, and what has replaced that.

    Raises:
        TpuxError: a config, or the state, cannot be read.
    """
    for path in [record.directory / "resolved.json", *record.directory.glob("configs/*/resolved.json")]:
        if (data := files.load(path)) is None:
            raise TpuxError("the job's config cannot be read", where=str(path))
        yield cast("Answers", data.get("resolved", {}))
    yield record.refresh().resolved
    yield record.updates()

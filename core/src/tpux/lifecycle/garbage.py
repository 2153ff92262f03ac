"""What plugins keep on this machine for jobs, beside the jobs' directories: its size, and its removal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from tpux.errors import TpuxError
from tpux.plugin import spec
from tpux.store import files

if TYPE_CHECKING:
    from tpux.model.json import JsonValue
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux.store.record import Record

    Answers = dict[str, dict[str, JsonValue]]

_log = logging.getLogger(__name__)


def remove_unused(store: Store, plugins: Plugins) -> None:
    """Let the plugins remove what no job uses, while no job can be created. A failure is logged.

    Nothing is removed if the config of any job cannot be read: what that job uses is unknown.
    """
    names = plugins.implementing(spec.remove_unused)
    try:
        with store.creation_lock():
            records = [record for user in store.users() for record in store.records(user)]
            used = [answers for record in records for answers in _answers(record)] if names else []
            for name in names:
                plugins.call_one(name, spec.remove_unused, used=[each[name] for each in used if name in each])
    except (TpuxError, OSError) as error:
        _log.warning("what no job uses is not removed: %s", error)


def disk_usage(record: Record, plugins: Plugins) -> int:
    """Return how many bytes a job takes on this machine, with what plugins keep for it.

    Raises:
        TpuxError: the job's config cannot be read, or a plugin failed.
    """
    total = sum(path.lstat().st_size for path in record.directory.rglob("*") if path.is_file())
    resolved = {name: values for answers in _answers(record) for name, values in answers.items()}
    for name in plugins.implementing(spec.disk_usage):
        if name in resolved:
            total += plugins.call_one(name, spec.disk_usage, resolved=resolved[name]) or 0
    return total


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

"""Orphans: machines that jobs of this store created and that no job holds. They are reported, and never deleted here.

`python -m tpux.supervisor.orphans` looks for them, as a process of its own: clouds may take long to answer.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from tpux import env
from tpux.errors import TpuxError
from tpux.supervisor import client
from tpux.supervisor.files import Files

if TYPE_CHECKING:
    from pathlib import Path

    from tpux.model.json import JsonValue
    from tpux.model.machines import Orphan, OrphanReport
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux.store.state import State

_log = logging.getLogger(__name__)
INTERVAL = 3600.0
"""Seconds between two searches."""
INTERVAL_AT_START = 600.0
"""Seconds since the last search after which a supervisor that starts looks again."""


def search_in_background(store: Store, states: Iterable[State], interval: float = INTERVAL) -> None:
    """Start a search, if the last one is long enough ago and a job was in a cloud. It can be left out on a full disk.

    Args:
        store: whose orphans.
        states: the jobs; only clouds have zones.
        interval: seconds since the last search.
    """
    from tpux.store import identity

    if not any(state.zone for state in states) or identity.misplaced(store.home):
        return
    begun = Files(store.supervisor).orphans_begun
    try:
        if 0 <= (time.time() - _changed(begun)) * env.clock_rate() < interval:
            return
        begun.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        begun.touch()
        client.start_process(store, "tpux.supervisor.orphans")
    except OSError as error:
        _log.warning("no search for orphans: %s", error)


def _changed(path: Path) -> float:
    """Return when a file was last changed, in seconds since the epoch; 0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def last_report(store: Store) -> OrphanReport | None:
    """Return what the last search found; None if none has ended."""
    if not (path := Files(store.supervisor).orphans).exists():
        return None
    from tpux.model.machines import OrphanReport  # `tpux list` asks each time
    from tpux.store.files import JsonFile

    return JsonFile(path, OrphanReport).load()


def search(store: Store, plugins: Plugins) -> list[Orphan]:
    """Ask the allocators of the stored jobs for orphans in the places of these jobs."""
    from tpux.plugin import spec

    found: dict[tuple[str, str], Orphan] = {}
    for allocator, places in _places(store).items():
        try:
            answer = plugins.call_one(allocator, spec.find_orphans, places=list(places.values())) or []
        except TpuxError as error:
            _log.warning("no search for orphans of %s: %s", allocator, error)
            continue
        found |= {(orphan.name, orphan.where): orphan for orphan in answer}
    return list(found.values())


def _places(store: Store) -> dict[str, dict[str, dict[str, JsonValue]]]:
    """Return what `resolve` returned for the stored jobs, each once, by allocator."""
    from tpux.store import files

    places: dict[str, dict[str, dict[str, JsonValue]]] = {}
    for job in store.ids():
        data = files.load(store.record(job).config_directory / "resolved.json") or {}
        allocator = cast("str", data.get("allocator", ""))
        if place := cast("dict[str, dict[str, JsonValue]]", data.get("resolved", {})).get(allocator):
            places.setdefault(allocator, {})[json.dumps(place, sort_keys=True)] = place
    return places


def main() -> int:
    """Search once, and store what was found. Returns the exit code."""
    from tpux.model.machines import OrphanReport
    from tpux.plugin.manager import Plugins
    from tpux.store import Store
    from tpux.store.files import JsonFile

    client.clean_environment()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    store = Store()
    report = OrphanReport(time.time(), tuple(search(store, Plugins())))
    JsonFile(Files(store.supervisor).orphans, OrphanReport).save(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())

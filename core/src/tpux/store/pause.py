"""`pause-USER.json`: until when no pending job of a user requests machines, and why; a plugin that counts writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpux.store.files import JsonFile

if TYPE_CHECKING:
    from tpux.store import Store


@dataclass(frozen=True)
class Pause:
    """Why jobs wait, and until when, in seconds since the epoch.

    Attributes:
        exempt: the ids of jobs that do not wait.
    """

    why: str
    until: float
    exempt: tuple[str, ...] = ()


def change(store: Store, pause: Pause | None) -> None:
    """Let the user's pending jobs wait; with None, no longer."""
    if pause is None:
        _file(store).path.unlink(missing_ok=True)
    else:
        _file(store).save(pause)


def current(store: Store, now: float, job: str) -> Pause | None:
    """Return the pause in which a pending job of the user waits now; None if there is none."""
    pause = _file(store).load()
    return pause if pause is not None and now < pause.until and job not in pause.exempt else None


def _file(store: Store) -> JsonFile[Pause]:
    return JsonFile(store.home / f"pause-{store.user}.json", Pause)

"""What delete and clean share: wanting jobs gone, and waiting until they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpux.cli.common import say
from tpux.errors import TpuxError

if TYPE_CHECKING:
    from tpux.store import Store
    from tpux.store.jobs import Record

PATIENCE = 600.0


def remove(store: Store, records: Sequence[Record]) -> None:
    """Write down that these jobs are to go, and wait until they are gone.

    Raises:
        TpuxError: one was still there after ten minutes.
    """
    from tpux.cli.follow import LOOK_EVERY, REVIVE_EVERY
    from tpux.store import wanted
    from tpux.supervisor import spawn

    for record in records:
        wanted.write(record.directory, "delete")
    spawn.poke(store)
    start = looked = time.monotonic()
    left = list(records)
    while left:
        for record in [record for record in left if not record.directory.is_dir()]:
            say(f"job {record.directory.name} is deleted")
            left.remove(record)
        now = time.monotonic()
        if left and now - start > PATIENCE:
            what = left[0].look().why
            raise TpuxError(f"still there after {PATIENCE:.0f} s: {what}", where=f"job {left[0].directory.name}")
        if now - looked > REVIVE_EVERY:
            looked = now
            spawn.revive(store)
        time.sleep(LOOK_EVERY if left else 0)

"""What the supervisor says about itself: blocked turns, and why it cannot use a changed installation.

A blocked job's own turn cannot write an event, and no other thread may; so commands read this file beside the events.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpux.store.state import State

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """The content of the file.

    Attributes:
        pid: the supervisor that wrote it.
        blocked: what each job whose turn is blocked waits for, by the job's id.
        installation: why the changed installation is not used; "" if it has not changed, or is about to be used.
    """

    pid: int = 0
    blocked: Mapping[str, str] = field(default_factory=dict)
    installation: str = ""

    def applied_to(self, state: State) -> State:
        """Return a job's state, with what its blocked turn waits for as its `why`."""
        return replace(state, why=self.blocked[state.id]) if state.id in self.blocked else state


def read(path: Path) -> Report:
    """Return the report; an empty one if there is no file, or it cannot be read."""
    try:
        data = json.loads(path.read_text())
        return Report(int(data["pid"]), dict(data["blocked"]), str(data["installation"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Report()


def write(path: Path, report: Report) -> None:
    """Replace the report; without anything to say the file is removed. An error is logged."""
    from tpux.store import files

    try:
        if report.blocked or report.installation:
            content = {"pid": report.pid, "blocked": dict(report.blocked), "installation": report.installation}
            files.write_atomic(path, json.dumps(content).encode(), durable=False)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("cannot write %s: %s", path, error)

"""An emulated cloud of the rehearsal's own, in place of local workers: started and used by its commands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tpux import TpuxError
from tpux_rehearse.sandbox import run_tpux

if TYPE_CHECKING:
    from tpux_rehearse.sandbox import Sandbox

_READY = "READY"


@dataclass(frozen=True)
class Emulation:
    """An emulator that runs.

    Attributes:
        home: its directory.
        url: the address of its API.
        shared: where the workers have the directory that they share, and that survives preemptions.
    """

    home: Path
    url: str
    shared: str

    def here(self, path: str) -> Path:
        """Return the path that a file has on this machine whose path on a worker is given."""
        if not self.shared or not PurePosixPath(path).is_relative_to(self.shared):
            return Path(path)
        return _shared(self.home) / PurePosixPath(path).relative_to(self.shared)

    def preempt(self, notice: float | None) -> None:
        """Preempt all nodes that are ready.

        Args:
            notice: seconds from the announcement to the loss of the machines; None for no announcement.

        Raises:
            TpuxError: the emulator does not answer.
        """
        for node in self._ready():
            try:
                run_tpux("emulator", "preempt", node, "--notice", f"{notice or 0:g}s", "--home", str(self.home))
            except TpuxError:
                if node in self._ready():  # else the program has just ended, and the job has released its machines
                    raise

    def _ready(self) -> list[str]:
        status = json.loads(run_tpux("emulator", "status", "--json", "--home", str(self.home)))
        return [str(node["name"]) for node in status["nodes"] if node["state"] == _READY]


def start_emulator(sandbox: Sandbox) -> Emulation:
    """Start an emulator in the store of a rehearsal, which stops it.

    Raises:
        UsageError: the plugin `emulator` is not installed.
        TpuxError: it does not start, or its workers cannot run here.
    """
    home = sandbox.emulator
    shared = _shared(home)
    shared.mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    shared.chmod(0o1777)  # the user of the workers is another one; nobody else here gets into the directory above
    run_tpux("emulator", "start", "--detach", "--port", "0", "--home", str(home))
    status = json.loads(run_tpux("emulator", "status", "--json", "--home", str(home)))
    if not status.get("shared"):
        raise TpuxError("this emulator has no workers", hint="update tpux-plugin-emulator: pip install -U tpux")
    return Emulation(home, str(status["url"]), str(status["shared"]))


def _shared(home: Path) -> Path:
    return home / "shared"

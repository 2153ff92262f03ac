"""Paths of the supervisor's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tpux.store.heartbeat import FILE


@dataclass(frozen=True)
class Files:
    """Paths of the supervisor's files."""

    directory: Path

    @property
    def lock(self) -> Path:
        """The file that the supervisor locks as long as it lives; its content is the supervisor's status."""
        return self.directory / "lock"

    @property
    def wake(self) -> Path:
        """The file that commands touch when they have written a request."""
        return self.directory / "wake"

    @property
    def stop(self) -> Path:
        """The file that exists while the user wants no supervisor."""
        return self.directory / "stop"

    @property
    def log(self) -> Path:
        """The supervisor's log."""
        return self.directory / "log"

    @property
    def orphans(self) -> Path:
        """What the last search for orphans found."""
        return self.directory / "orphans.json"

    @property
    def orphans_begun(self) -> Path:
        """The file that is touched when a search for orphans begins."""
        return self.directory / "orphans-begun"

    @property
    def start_script(self) -> Path:
        """The shell script with which systemd or cron starts the supervisor."""
        return self.directory / "start.sh"

    @property
    def autostart(self) -> Path:
        """Whether systemd or cron starts the supervisor; see `client.find_installed`."""
        return self.directory / "autostart.json"

    @property
    def suggested(self) -> Path:
        """The file that exists once `tpux run` has suggested to install the supervisor."""
        return self.directory / "suggested"

    @property
    def report(self) -> Path:
        """What the supervisor says about itself; see `tpux.supervisor.report`."""
        return self.directory / "report.json"

    @property
    def heartbeat(self) -> Path:
        """Its time is when the main loop moved last; see `tpux.supervisor.heartbeat`."""
        return self.directory / FILE

    @property
    def warnings(self) -> Path:
        """A digest of each warning that was shown for the running supervisor."""
        return self.directory / "warnings"

    @property
    def listeners(self) -> Path:
        """What happened to listeners: a `ListenerReport` each."""
        return self.directory / "listeners.json"

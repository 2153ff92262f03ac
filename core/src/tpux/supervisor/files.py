"""Paths of the supervisor's files."""

from __future__ import annotations

from pathlib import Path

from tpux.store.heartbeat import FILE


class Files:
    """Paths of the supervisor's files.

    Args:
        directory: the supervisor's directory.

    Attributes:
        directory: as above.
        lock: the supervisor locks it as long as it lives; its content is the supervisor's status.
        wake: commands touch it when they have written a request.
        stop: it exists while the user wants no supervisor.
        log: the supervisor's log.
        orphans: what the last search for orphans found.
        orphans_begun: it is touched when a search for orphans begins.
        start_script: the shell script with which systemd or cron starts the supervisor.
        autostart: whether systemd or cron starts the supervisor; see `client.find_installed`.
        suggested: it exists once `tpux run` has suggested to install the supervisor.
        report: what the supervisor says about itself; see `tpux.supervisor.report`.
        heartbeat: its time is when the main loop moved last; see `tpux.supervisor.heartbeat`.
        warnings: a digest of each warning that was shown for the running supervisor.
        listeners: what happened to listeners: a `ListenerReport` each.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = directory / "lock"
        self.wake = directory / "wake"
        self.stop = directory / "stop"
        self.log = directory / "log"
        self.orphans = directory / "orphans.json"
        self.orphans_begun = directory / "orphans-begun"
        self.start_script = directory / "start.sh"
        self.autostart = directory / "autostart.json"
        self.suggested = directory / "suggested"
        self.report = directory / "report.json"
        self.heartbeat = directory / FILE
        self.warnings = directory / "warnings"
        self.listeners = directory / "listeners.json"

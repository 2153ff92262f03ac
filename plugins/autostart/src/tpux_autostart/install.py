"""`tpux supervisor install`: start the supervisor at boot and after a crash."""

from __future__ import annotations

from tpux import api

app = api.new_app()


@app.command(epilog="Example: tpux supervisor install")
def install() -> None:
    """Start the supervisor at boot and after a crash.

    Jobs then continue without a command. A systemd user unit starts it, with linger; where systemd has no user
    instance, crontab. The supervisor is then started with the environment and the installation of this command; repeat
    it after either has changed.
    """
    from tpux.api import supervisor
    from tpux_autostart import units

    installed = units.install()
    if installed.by == "systemd":
        supervisor.restart()  # by systemd from now on; programs keep running
    by = f"systemd ({installed.unit})" if installed.by == "systemd" else f"cron, within {units.EVERY} minutes"
    api.say(f"the supervisor is started at boot and after a crash by {by}; to undo that: tpux supervisor uninstall")
    for note in installed.notes:
        api.say(f"warning: {note}")

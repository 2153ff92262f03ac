"""`tpux supervisor uninstall`: undo `tpux supervisor install`."""

from __future__ import annotations

from tpux import api

app = api.new_app()


@app.command(epilog="Example: tpux supervisor uninstall")
def uninstall() -> None:
    """Undo `tpux supervisor install`. A running supervisor continues."""
    from tpux_autostart import units

    if not (by := units.uninstall()):
        api.say("the supervisor is not installed")
        return
    lingers = "; linger is still enabled: see `loginctl disable-linger`" if by == "systemd" else ""
    api.say(f"from now on only commands start the supervisor{lingers}")

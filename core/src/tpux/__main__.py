"""The program `tpux`, also as `python -m tpux`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C during the imports ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # not where the shell has made the process ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tpux.cli.main import main as run

    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()

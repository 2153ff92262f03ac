"""The program `tpux`, also as `python -m tpux`. Until the command line runs, Ctrl-C ends it without a traceback."""

from __future__ import annotations

try:
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the shell made the process ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
except KeyboardInterrupt:  # while `signal` was imported
    raise SystemExit(130) from None


def main() -> None:
    """Run the command line and exit."""
    import gc

    gc.set_threshold(100_000)  # most commands end before there is garbage, and would search what they import for it
    from tpux.cli.main import main as run

    try:
        run()
    finally:
        gc.freeze()  # or Python searches all objects for garbage as it ends, which takes as long as a small command


if __name__ == "__main__":
    main()

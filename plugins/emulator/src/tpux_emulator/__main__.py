"""`python -m tpux_emulator`: the same commands as `tpux emulator`."""

import sys

from tpux import TpuxError
from tpux_emulator.cli import app


def main() -> None:
    """Run a command; print a TpuxError without a traceback."""
    try:
        app(prog_name="tpux-emulator")
    except TpuxError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(int(error.exit_code))


if __name__ == "__main__":
    main()

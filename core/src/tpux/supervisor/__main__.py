"""`python -m tpux.supervisor`, as `client` starts it. Its standard error is the log."""

from __future__ import annotations

import logging
import sys

from tpux.clock import SystemClock
from tpux.errors import TpuxError
from tpux.store import Store
from tpux.supervisor.client import clean_environment
from tpux.supervisor.scheduler import Supervisor


def main() -> int:
    """Drive the user's jobs until all are done. Returns the exit code."""
    clean_environment()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return Supervisor(Store(), SystemClock()).run()
    except TpuxError as error:
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400  (the log is read by people)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tpux.supervisor`, as `client` starts it. Its standard error is the log."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tpux import descriptors
from tpux.clock import SystemClock
from tpux.errors import TpuxError
from tpux.store import Store
from tpux.store.identity import MisplacedStoreError
from tpux.supervisor.check import check
from tpux.supervisor.client import clean_environment
from tpux.supervisor.errors import retry
from tpux.supervisor.handover import Handover
from tpux.supervisor.installation import load_core
from tpux.supervisor.scheduler import Supervisor


def main() -> int:
    """Drive the user's jobs until all are done. Returns the exit code."""
    clean_environment()
    _leave_cgroup()
    # SIGINT ends the process, as SIGTERM does: a KeyboardInterrupt is always a plugin's own (`is_interrupt`).
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    arguments = _parser().parse_args()
    try:
        clock = SystemClock()
        if arguments.check is not None:
            check(Store(), arguments.check)
            return 0
        store = retry(Store)
        retry(store.require_in_place)
        handover = retry(lambda: Handover(clock, arguments.done_for.split(","), json.loads(arguments.abandoned)))
        retry(load_core)
        descriptors.raise_limit()
        return Supervisor(store, clock, handover).run(arguments.lock)
    except MisplacedStoreError as error:  # not a failure that systemd should try again every few seconds
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400  (the log is read by people)
        return 0
    except TpuxError as error:
        if arguments.check is not None:
            sys.stderr.write(f"{error.where}: {error.message}\n")  # one line, which `RunningCheck` reads
            return 1
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400  (the log is read by people)
        return 1
    except Exception:  # the interpreter would wait for threads that may never return
        logging.getLogger(__name__).exception("the supervisor failed")
        return 1


def _leave_cgroup() -> None:
    """Leave the cgroup of a program that has started this process: a stop ends all of it (`scripts/runner.sh`)."""
    with suppress(OSError):
        found = re.search(r"^0::(.*?)/tpux-[0-9a-f-]{36}(/|$)", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            if found and (outer := Path(f"{base}{found[1]}/cgroup.procs")).exists():
                command = [*([] if os.access(outer, os.W_OK) else ["sudo", "-n"]), "tee", str(outer)]
                subprocess.run(command, input=b"%d" % os.getpid(), capture_output=True, check=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tpux.supervisor")
    parser.add_argument("--check", nargs="*", metavar="JOB", help="only check whether these jobs can be driven")
    parser.add_argument("--lock", type=int, metavar="FD", help="the lock, held by the process that this one replaces")
    parser.add_argument("--done-for", default="", metavar="IDS", help="the requests for which it was replaced")
    parser.add_argument("--abandoned", default="{}", metavar="JSON", help="the calls of plugins that this ends, by job")
    return parser


def _exit(code: int) -> None:
    """End the process, also if a plugin's thread never returns."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _exit(main())

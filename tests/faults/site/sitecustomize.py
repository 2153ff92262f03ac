"""Place the faults of `tests.faults.points` in a supervisor, whose PYTHONPATH leads here."""

import os
import sys

if os.environ.get("TPUX_TEST_POINTS") and "tpux.supervisor" in sys.orig_argv:
    import fault_points

    fault_points.install(os.environ["TPUX_TEST_POINTS"])

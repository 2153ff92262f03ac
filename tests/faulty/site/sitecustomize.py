"""Load the library of `preload.c` into every Python process that finds this file: start it again with LD_PRELOAD.

A supervisor is started without LD_PRELOAD, but with PYTHONPATH and variables that begin with TPUX_. A process that it
starts on a local worker has none of them, so the programs of jobs are not affected.
"""

import os
import sys

_library = os.environ.get("TPUX_TEST_PRELOAD")
if _library and _library not in os.environ.get("LD_PRELOAD", ""):
    os.environ["LD_PRELOAD"] = _library
    os.execv(sys.executable, sys.orig_argv)  # the process keeps its pid, and the descriptors that it inherited

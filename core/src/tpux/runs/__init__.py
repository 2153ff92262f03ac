"""The run protocol: a script started on a worker that outlives the connection, the supervisor, the login node.

A run is a directory below the worker's home, `~/.tpux/runs/<job>/<attempt>/<name>/`:

| file | what it is |
|---|---|
| `script` | what is run, as it came |
| `runner` | `scripts/runner.sh`, which runs the program |
| `program.<n>` | the environment and the argument vector as a shell script; gone once it has been read |
| `output` | stdout and stderr as they came |
| `lock` | held by the runner until the exit code is in place |
| `started` | the boot id and the uptime, written before the start: there is no second one |
| `session` | the program's session |
| `exit` | the exit code, renamed into place |
| `stopped` | somebody wants it ended, and why: it is not started any more |
| `signalled` | the processes that a stop has found alive |

What runs on the worker is POSIX sh (`scripts/`), a constant beside quoted ids; what comes from a user
travels in stdin. Every call here is one round trip.
"""

from tpux.runs.run import Run as Run
from tpux.runs.run import Status as Status
from tpux.runs.starting import poll as poll
from tpux.runs.starting import probe as probe
from tpux.runs.starting import start as start
from tpux.runs.stopping import remove as remove
from tpux.runs.stopping import stop as stop
from tpux.runs.stopping import sweep as sweep
from tpux.runs.stopping import unfinished as unfinished
from tpux.runs.walk import ReplayLog as ReplayLog
from tpux.runs.walk import Walk as Walk
from tpux.runs.walk import dry_run as dry_run

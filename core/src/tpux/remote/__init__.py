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

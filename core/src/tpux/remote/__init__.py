"""Scripts on a worker that outlive the connection, the supervisor and the login node.

One execution of a script is a run: a directory below the worker's home,
`~/.tpux/runs/<job>-w<worker>/<attempt>/<name>/`.

| file | content |
|---|---|
| `script` | the script to run |
| `runner` | `scripts/runner.sh`, which starts the program and records its exit code |
| `program.<n>` | the environment and the argument vector as a shell script; deleted once it has been read |
| `output` | stdout and stderr |
| `lock` | held by the runner until the exit code is recorded |
| `started` | the boot id and the uptime, written before the start, so that there is no second start |
| `session` | the program's session id |
| `exit` | the exit code, put there by an atomic rename |
| `stopped` | the run was stopped, and why; it can no longer be started |
| `signalled` | the processes that a stop has found alive |

The worker executes POSIX sh: the constant scripts of `scripts/` with quoted ids before them. What comes from users
travels in stdin. Every call of this package is one round trip.
"""

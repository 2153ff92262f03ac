"""Find the processes of a run that SIGKILL cannot end, since they wait in the kernel, as for a mount that hangs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tpux.model.host import OpenHost
from tpux.remote.process import RemoteProcess

SIGKILL = 1 << 8
"""SIGKILL in the masks of /proc/PID/status."""
# The processes that were alive after the last signal are in the file `signalled` of each run, as "pid:start time".
_READ = """
for entry in $(for run in {runs}; do {skip}cat "$run/signalled"; done); do
    grep -E '^(State|Pid|VmSize|SigPnd|ShdPnd):' "/proc/${{entry%:*}}/status"
done 2>/dev/null
"""


def hung_processes(host: OpenHost, run: RemoteProcess) -> list[int]:
    """Return the processes of a run that have got SIGKILL and wait in the kernel: they run no more code of their own.

    Args:
        host: the worker.
        run: the run, to which `process.stop` has sent SIGKILL; it may stand for several.

    Raises:
        HostUnreachableError: the worker did not answer.
    """
    several = run.name.endswith("*")
    runs = shlex.quote(run.directory.removesuffix("*")) + "*" * several
    # As `process.stop` does. A single run has more processes than the one whose end is recorded.
    skip = '[ -e "$run/exit" ] || ' if several else ""
    found: list[dict[str, str]] = []
    for line in host.run(_READ.format(runs=runs, skip=skip)).text.splitlines():
        name, _, value = line.partition(":")
        if name == "State":
            found.append({})
        if found:
            found[-1][name] = value.strip()
    return [int(one["Pid"]) for one in found if _hangs(one)]


def describe_hung(pids: Sequence[int], whose: str = "") -> str:
    """Return, for people, which processes SIGKILL has not ended.

    Args:
        pids: what `hung_processes` has returned.
        whose: what they belong to, with a blank before it.
    """
    numbers = ", ".join(map(str, pids))
    those = f"process {numbers}{whose} hangs" if len(pids) == 1 else f"processes {numbers}{whose} hang"
    return f"{those} in the kernel, as on a mount whose server does not answer, despite SIGKILL"


def _hangs(status: dict[str, str]) -> bool:
    """Return whether a process waits without a chance of being interrupted, and has got SIGKILL or is exiting."""
    killed = any(int(status.get(mask, "0"), 16) & SIGKILL for mask in ("SigPnd", "ShdPnd"))
    return status["State"].startswith("D") and "Pid" in status and (killed or "VmSize" not in status)

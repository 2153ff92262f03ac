"""Count the jumps between the files of `tpux.lifecycle` while a local job is preempted once and finishes.

A jump is a call from a function in one file to a function (or property) in another file; each pair of functions
counts once, since a reader follows it once. The number of calls is printed too. Run it as
`python scripts/trace_lifecycle.py`; with `-v` it lists the jumps. Monitors, which begin at a random time, do not run.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

CONFIG = """
tpu: {accelerator: v4-8, pricing: spot}
local: {preempt_after: 0.5s}
watch: {resources_every: 1000d}
command: {cmd: '[ $TPUX_ATTEMPT = 2 ] || sleep 60', grace_period: 1s}
"""
Function = tuple[str, str]
"""The file's name and the function's."""


def main() -> None:
    """Run the job in this process, and print the jumps."""
    with tempfile.TemporaryDirectory(prefix="tpux-trace-") as directory:
        os.environ["TPUX_HOME"] = f"{directory}/home"
        jumps = _trace(Path(directory))
    into = Counter(to[0] for _, to in jumps)
    if "-v" in sys.argv:
        for (source, to), calls in sorted(jumps.items()):
            print(f"{calls:6} {source[0]}:{source[1]} -> {to[0]}:{to[1]}")
    print(f"{len(jumps)} jumps, {sum(jumps.values())} calls")
    print("into " + ", ".join(f"{file}: {number}" for file, number in into.most_common()))


def _trace(directory: Path) -> Counter[tuple[Function, Function]]:
    from tpux import lifecycle
    from tpux.clock import SystemClock
    from tpux.lifecycle.advance import JobController
    from tpux.lifecycle.create import create_job
    from tpux.plugin.manager import Plugins
    from tpux.store import Store

    config = directory / "job.yaml"
    config.write_text(CONFIG)
    store = Store()
    record = create_job(store, config, [], warn=print)
    assert record.acquire()
    controller = JobController(store, record, Plugins(), SystemClock())
    package = str(Path(lifecycle.__file__ or "").parent)
    jumps: Counter[tuple[Function, Function]] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        if event != "call" or caller is None:
            return
        files = caller.f_code.co_filename, frame.f_code.co_filename
        if files[0] == files[1] or not all(file.startswith(package) for file in files):
            return
        jumps[_function(caller), _function(frame)] += 1

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        while (delay := controller.advance()) is not None:
            time.sleep(min(delay, 0.1))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    state = record.state
    assert (state.state, state.attempt, state.preemptions) == ("succeeded", 2, 1), state
    return jumps


def _function(frame: FrameType) -> Function:
    return Path(frame.f_code.co_filename).name, getattr(frame.f_code, "co_qualname", frame.f_code.co_name)


if __name__ == "__main__":
    main()

"""The classification of a failure on 64 workers whose logs have 10 MB each, by all detectors that every job uses."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.measure import Row, at_most
from tpux.plugin import spec
from tpux.plugin.manager import Plugins
from tpux_testing import attempt, job

WORKERS = 64
SIZE = 10_000_000
ROUNDS = 5
LINE = b"step 1 loss 0.5\n"
END = b"jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: Socket closed\n"


def rows() -> list[Row]:
    """Measure the wall time; the logs are in the page cache, as those that were written just now are."""
    plugins, failed = Plugins(), job("command: {cmd: 'true'}")
    ended = attempt(dict.fromkeys(range(WORKERS), ""), 1)
    for ending in ended.endings:
        ending.log.write_bytes(LINE * ((SIZE - len(END)) // len(LINE)) + END)
    detectors = [name for name in plugins.names() if plugins.implements(name, spec.classify_failure)]
    times = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        for name in detectors:
            plugins.call_one(name, spec.classify_failure, job=failed, config=None, attempt=ended)
        times.append(time.monotonic() - began)
    for ending in ended.endings:
        ending.log.unlink()
    title = f"classification of a failure with logs of {SIZE // 10**6} MB from {WORKERS} workers"
    return [at_most(title, median(times), 1, unit=" s", note=f"detectors: {', '.join(detectors)}")]

"""`tpux web` with 10,000 jobs, a log of 100 MB that grows by 2,000 lines a second, and a page that shows all of it."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.measure import Row, at_most, cpu_of, memory_of, until
from benchmarks.sandbox import TPUX, Sandbox, temporary_sandbox
from benchmarks.startup import JOBS, fill, live

LOG = 100_000_000
LINES = 2_000
"""Lines a second."""
EVERY = 0.1
OBSERVED = 30.0
SETTLE = 10.0
"""Seconds from the first answer: the jobs are read once, and samples of the log."""
TOPICS = ("jobs/1/", "machines", "queue", f"job/{JOBS}", f"curve/{JOBS}/1", f"log/{JOBS}/1/0/end")


def rows() -> list[Row]:
    """Measure the memory and CPU of the server, and how long a line takes to the browser."""
    with temporary_sandbox() as sandbox:
        fill(sandbox.store, JOBS)
        live(sandbox)
        sandbox.start()
        log = sandbox.home / f"jobs/{sandbox.store.user}/{JOBS:06}/logs/attempt-1/command_worker_0.log"
        log.parent.mkdir(parents=True)
        line = "step {0} loss 2.31 " + "x" * 80 + "\n"
        size = len(line.format(100_000))
        log.write_text("".join(line.format(step) for step in range(LOG // size)))
        with serving(sandbox) as (process, port, token), writing(log):
            reader = Reader(port, token)
            # All jobs are read before, which takes minutes where other work has the cores.
            until(lambda: reader.lags != [], within=600, why="the first line of the log")
            time.sleep(SETTLE)
            reader.lags.clear()
            before, at = cpu_of(process.pid), time.monotonic()
            time.sleep(OBSERVED)
            share = (cpu_of(process.pid) - before) / (time.monotonic() - at)
            peak, lags, skipped = memory_of(process.pid), list(reader.lags), reader.skipped
    what = f"`tpux web`, {JOBS:,} jobs, a log of {LOG // 1_000_000} MB, {LINES:,} lines a second"
    return [
        at_most(f"{what}: peak memory (RSS)", peak, 80, unit=" MB"),
        at_most("... CPU", 100 * share, 25, unit=" %"),
        at_most(
            "... from the log to the browser",
            1000 * median(lags),
            1000,
            unit=" ms",
            note=f"at most {1000 * max(lags):.0f}",
        ),
        Row("... bytes that were left out", str(skipped), "0", skipped == 0),
    ]


@contextmanager
def serving(sandbox: Sandbox) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """Yield a server, its port and its token."""
    argv = [str(TPUX), "web", "--port", "0"]
    process = subprocess.Popen(argv, env=sandbox.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    address, _, token = process.stdout.readline().decode().strip().partition("/#token=")
    try:
        yield process, int(address.rpartition(":")[2]), token
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def writing(log: Path) -> Iterator[None]:
    """Let the log grow; each piece begins with the time at which it was written."""
    ended = threading.Event()

    def write() -> None:
        count = int(LINES * EVERY)
        with log.open("a") as file:
            while not ended.wait(EVERY):
                file.write(f"at {time.time()}\n" + ("step 900000 loss 2.31 " + "x" * 80 + "\n") * (count - 1))
                file.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Reader:
    """Reads a stream as a browser does.

    Attributes:
        lags: seconds from when each piece was written to when it was read.
        skipped: bytes of the log that the server has left out.
    """

    def __init__(self, port: int, token: str) -> None:
        self.lags: list[float] = []
        self.skipped = 0
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        query = "&".join(f"topic={topic}" for topic in TOPICS)
        connection.request("GET", f"/api/stream?{query}", headers={"Authorization": f"Bearer {token}"})
        self._response = connection.getresponse()
        assert self._response.status == 200, self._response.status
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for text in iter(self._response.readline, b""):
            message = json.loads(text) if text.strip() else {}
            if message.get("topic") != len(TOPICS) - 1:
                continue
            now = time.time()
            self.skipped += message["data"].get("skipped", 0)
            lines = message["data"]["text"].splitlines()[1:]
            self.lags += [now - float(line[3:]) for line in lines if line.startswith("at ")]

"""`tpux monitor` of 200 jobs on a terminal: its start, its CPU, and what it sends to the terminal."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from statistics import median
from termios import TIOCSWINSZ

from benchmarks.measure import Row, at_most, cpu_of
from benchmarks.sandbox import TPUX, temporary_sandbox
from benchmarks.startup import RUNNING, fill

JOBS = 200
ROUNDS = 5
SETTLE = 4.0
CHANGED = 10
"""Jobs whose programs print a line, in each second."""
OBSERVED = 30
"""Seconds for which the CPU and the bytes are measured."""
FIRST_PAINT = 500
"""Bytes after which a program has painted its screen: what it asks of the terminal before is shorter."""
MINIMAL = """
from textual.app import App
from textual.widgets import Static

class Minimal(App):
    def compose(self):
        yield Static("line " * 400)

Minimal().run()
"""


@dataclass
class Pty:
    """A program on a terminal of 80 columns and 24 rows; what it writes is counted."""

    process: subprocess.Popen[bytes]
    master: int
    written: int = 0

    def read_for(self, seconds: float, until: int | None = None) -> None:
        """Read what the program writes, for some seconds or until so many bytes have come."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and (until is None or self.written < until):
            if select.select([self.master], [], [], left)[0]:
                self.written += len(os.read(self.master, 65536))

    def close(self) -> None:
        """End the program."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.master)


def on_terminal(argv: Sequence[str | Path], env: Mapping[str, str]) -> Pty:
    """Start a program on a terminal."""
    master, slave = os.openpty()
    ioctl(slave, TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**env, "TERM": "xterm-256color"}
    process = subprocess.Popen(argv, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    return Pty(process, master)


def start(argv: Sequence[str | Path], env: Mapping[str, str]) -> float:
    """Return the CPU seconds of a program until it has painted its screen."""
    program = on_terminal(argv, env)
    try:
        program.read_for(60, until=FIRST_PAINT)
        return cpu_of(program.process.pid)
    finally:
        program.close()


def log_of(directory: Path) -> Path:
    """Return the log of a job's first worker, which has a line."""
    log = directory / "logs/attempt-1/command_worker_0.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 0 loss 2.31\n")
    return log


def rows() -> list[Row]:
    """Measure the monitor, and its start, until its frame is shown, against a minimal program's."""
    with temporary_sandbox() as sandbox:
        fill(sandbox.store, JOBS, RUNNING)
        logs = [log_of(sandbox.store.record(job).directory) for job in sandbox.store.ids()]
        argv: list[str | Path] = [TPUX, "monitor"]
        minimal: list[str | Path] = [sys.executable, "-c", MINIMAL]
        starts = [(start(minimal, sandbox.env), start(argv, sandbox.env)) for _ in range(ROUNDS + 1)][1:]
        monitor = on_terminal(argv, sandbox.env)
        try:
            monitor.read_for(SETTLE)
            before, begun, written = cpu_of(monitor.process.pid), time.monotonic(), monitor.written
            for second in range(OBSERVED):
                for log in logs[second % (JOBS // CHANGED) :: JOBS // CHANGED]:
                    log.write_text(f"step {second} loss 2.31\n")
                monitor.read_for(1)
            took = time.monotonic() - begun
            used, sent = (cpu_of(monitor.process.pid) - before) / took, (monitor.written - written) / took
        finally:
            monitor.close()
    note = f"minimal program {1000 * median(least for least, _ in starts):.0f} ms"
    return [
        at_most(f"CPU of `tpux monitor` of {JOBS} running jobs", 100 * used, 5, unit=" %"),
        at_most("... bytes a second that it sends", sent, 2000),
        at_most(
            "... CPU until its frame is shown / a minimal Textual program",
            median(own / least for least, own in starts),
            1.5,
            note=note,
        ),
    ]

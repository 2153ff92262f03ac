"""Delay between a program writing a line and `tpux run` printing it, here and on a worker with an SSH server."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from threading import Thread
from typing import IO

from benchmarks.measure import Row, at_most, until
from benchmarks.sandbox import TPUX, temporary_sandbox
from benchmarks.ssh_fanout import SshServers, run_servers

LINES = 12
PAUSE = 1.7
"""Seconds between two lines: long enough for the poll interval to have grown."""
PAUSES = (0.3, 0.7, 1.1, 1.7, 2.3, 3.1) * 3
"""The same on an SSH server: shorter and longer than until a script there watches the program."""


def rows() -> list[Row]:
    """Measure the delay of each line; a line contains the time at which it was written."""
    script = f"for i in $(seq {LINES}); do sleep {PAUSE}; date +%s.%N; done"
    with temporary_sandbox() as sandbox:
        lags = _lags_of_run(sandbox.config(f"command: {{cmd: '{script}'}}\n"), sandbox.env, LINES)
    note = f"maximum of {LINES} lines; median {median(lags):.2g} s"
    result = [at_most("delay of a program's line on the screen of `tpux run`", max(lags), 2, unit=" s", note=note)]
    with run_servers() as servers:
        try:
            return [*result, _over_ssh(servers)]
        finally:
            subprocess.run([TPUX, "supervisor", "stop"], check=True, capture_output=True)


def _over_ssh(servers: SshServers) -> Row:
    """Measure the same lines with `tpux run` and with `ssh HOST tail -f` of a file that the program writes too."""
    file = servers.server.directory / "lines"
    file.touch()
    script = f"for i in {' '.join(map(str, PAUSES))}; do sleep $i; date +%s.%N | tee -a {file}; done"
    config = servers.server.directory / "lag.yaml"
    endpoint = f"{servers.addresses[0]}:{servers.server.port}"
    config.write_text(f"tpu: {{allocation_mode: hosts}}\nhosts: ['{endpoint}']\ncommand: {{cmd: '{script}'}}\n")
    tailed: list[float] = []
    tail = subprocess.Popen(
        servers.ssh(servers.addresses[0], f"echo tailing; exec tail -n 0 -f {file}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"tailing\n"
        reader = Thread(target=_read, args=(tail.stdout, tailed), daemon=True)
        reader.start()
        lags = _lags_of_run(config, os.environ, len(PAUSES))
        until(lambda: len(tailed) == len(PAUSES), within=10, why="the last line of `ssh tail -f`")
    finally:
        tail.terminate()
        tail.wait()
    bare = median(tailed)
    note = (
        f"maximum of {len(lags)} lines {max(lags):.2g} s; `ssh tail -f` {bare:.2g} s, ratio {median(lags) / bare:.1f}"
    )
    return at_most("... of a program on an SSH server, median", median(lags), 0.1, unit=" s", note=note)


def _lags_of_run(config: Path, env: Mapping[str, str], lines: int) -> Sequence[float]:
    lags: list[float] = []
    with subprocess.Popen([TPUX, "run", config], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        _read(process.stdout, lags)
    if len(lags) != lines:
        raise RuntimeError(f"{len(lags)} of {lines} lines were printed")
    return lags


def _read(lines: IO[bytes], lags: list[float]) -> None:
    """Append the delay of each line; `tpux run` writes the worker before it."""
    lags.extend(time.time() - float(line.split()[-1]) for line in lines)

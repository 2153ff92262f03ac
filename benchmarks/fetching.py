"""What a virtual environment of 200 MB costs: bytes from the package index, and copies between 64 workers.

The workers are directories on this machine. The index, on loopback, counts what it sends; the logs of the set-up say
which worker has sent its environment to which.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.measure import Row, at_most, until
from benchmarks.sandbox import Sandbox, running, temporary_sandbox
from tpux.store.record import Record

SIZE = 200_000_000
"""Bytes; there are as many copies as workers on the disk with the temporary files: 13 GB."""
WORKERS = 64
SURVIVOR = 20
"""The worker that keeps its environment: two others copy from it, and the first one looks for it."""
JOB = """
job: {{name: bench, env_type: venv}}
tpu: {{accelerator: v4-{chips}}}
venv: {{path: environment, requirements_file: '{requirements}', index_url: '{index}'}}
command: {{cmd: 'exec sleep 3600', grace_period: 1s}}
"""
PYTHON = """#!/bin/sh
[ "$1 $2" != "-m venv" ] || exec /usr/bin/python3 -m venv --without-pip "$3"
exec /usr/bin/python3 "$@"
"""


class Index:
    """A package index.

    Attributes:
        sent: the bytes of wheels that it has sent.
    """

    def __init__(self) -> None:
        self.url, self.sent = "", 0


def rows() -> list[Row]:
    """Measure the first set-up, and one in which a single worker still has the environment."""
    with temporary_sandbox() as sandbox, _index(sandbox.directory / "index") as index:
        programs = sandbox.directory / "bin"
        programs.mkdir()
        (programs / "python3").write_text(PYTHON)
        (programs / "python3").chmod(0o755)
        sandbox.env["PATH"] = f"{programs}{os.pathsep}{sandbox.env['PATH']}"
        requirements = sandbox.directory / "requirements.txt"
        requirements.write_text("tpux-bench\n")
        record = sandbox.submit(JOB.format(chips=8 * WORKERS, requirements=requirements, index=index.url))
        until(lambda: running(record), within=900, why="the job to run")
        first, senders = index.sent, _senders(record)
        _lose_all_but_one(sandbox, record)
        every = sum(senders.values())
        later = _senders(record) - senders
        copied = sum(later.values())
        sandbox.tpux("delete", record.id, "-y")
    size = f"{SIZE // 10**6} MB of packages for {WORKERS} workers"
    return [
        at_most(f"{size}: bytes from the package index / their size", first / SIZE, 1.01),
        at_most("... copies that one worker has sent", max(senders.values(), default=0), 2),
        Row("... workers that copied", str(every), str(WORKERS - 1), every == WORKERS - 1),
        at_most("... bytes from the index after all workers but one were lost", index.sent - first, 0),
        Row("... workers that copied then", str(copied), str(WORKERS - 1), copied == WORKERS - 1),
        at_most("... copies that one worker has sent then", max(later.values(), default=0), 2),
    ]


def _lose_all_but_one(sandbox: Sandbox, record: Record) -> None:
    """Start the job again, after the environments of all workers but one were removed."""
    sandbox.tpux("stop", record.id, "--keep")
    for worker in set(range(WORKERS)) - {SURVIVOR}:
        (environment,) = record.directory.glob(f"machines/*/worker-{worker}/environment")
        shutil.rmtree(environment)
    sandbox.tpux("resume", record.id)
    until(lambda: running(record) and record.refresh().attempt == 2, within=900, why="the second attempt")


def _senders(record: Record) -> Counter[str]:
    """Return how many copies each worker has sent so far, as the logs of the others say."""
    logs = [path.read_text() for path in record.logs.glob("venv_worker_*.log")]
    return Counter(number for log in logs for number in re.findall(r"^copied from worker (\d+)$", log, re.MULTILINE))


@contextmanager
def _index(root: Path) -> Iterator[Index]:
    """Serve an index that has one package."""
    index, pages = Index(), root / "simple/tpux-bench"
    pages.mkdir(parents=True)
    wheel = pages / "tpux_bench-1.0-py3-none-any.whl"
    _write_wheel(wheel)
    (pages / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            index.sent += wheel.stat().st_size if self.path.endswith(wheel.name) else 0
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index.url = f"http://127.0.0.1:{server.server_port}/simple"
        yield index
        server.shutdown()


def _write_wheel(path: Path) -> None:
    info, part = "tpux_bench-1.0.dist-info", 10_000_000
    texts = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tpux-bench\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tpux\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    names = [f"tpux_bench/data{number}" for number in range(max(1, SIZE // part))]
    texts[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*texts, *names, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in texts.items():
            wheel.writestr(name, text)
        for name in names:
            wheel.writestr(name, os.urandom(part))

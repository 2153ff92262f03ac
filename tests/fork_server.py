"""Run the command `tpux` in processes that are forked from one that has imported it: most of its CPU time is imports.

The commands are processes of their own, with their own environment, directory and files; supervisors and programs are
started as always.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

MODULES = (
    *(f"tpux.cli.{name}" for name in ("create", "delete", "follow", "list", "main", "run", "resume")),
    *(f"tpux.cli.{name}" for name in ("show", "stop", "supervisor", "wait")),
    "tpux.config.loader",
    "tpux.lifecycle.create",
    "tpux.lifecycle.open",
    "tpux.store.locks",
    "tpux.supervisor.client",
    "tpux.supervisor.report",
)
"""What is imported before the fork; no plugins, which a test may replace."""
LARGEST_REQUEST = 1 << 18


class ForkServer:
    """The process that forks, and the client for it.

    Args:
        environ: its environment, which no test has changed.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        self._environ = environ
        files = [theirs.fileno()]
        self._process = subprocess.Popen(command, pass_fds=files, stdin=subprocess.DEVNULL, env=environ)
        self._lock = threading.Lock()
        theirs.close()

    def serves(self, environ: Mapping[str, str]) -> bool:
        """Return whether an interpreter starts with this environment as this one: tpux reads the rest itself."""
        changed = {name for name in {*environ, *self._environ} if environ.get(name) != self._environ.get(name)}
        if "PYTHONPATH" in changed and "PYTHONPATH" not in self._environ and not any(_customizes(environ)):
            changed.remove("PYTHONPATH")
        return not any(name.startswith(("PYTHON", "LANG", "LC_", "LD_", "TPUX_TEST_")) for name in changed)

    def run(
        self, args: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str | None, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, as `subprocess.run` does."""
        ours, theirs = socket.socketpair()
        with (
            ours,
            theirs,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write((stdin or "").encode())
            given.seek(0)
            request = json.dumps({"args": [*map(str, args)], "cwd": str(cwd), "env": dict(env)}).encode()
            with self._lock:
                socket.send_fds(self._socket, [request], [given.fileno(), out.fileno(), err.fileno(), theirs.fileno()])
            theirs.close()
            ours.settimeout(timeout)
            pid = code = -1
            try:
                with ours.makefile() as answer:
                    pid = int(answer.readline())
                    code = int(answer.readline() or -signal.SIGKILL)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired([*args], timeout) from None
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="replace"))
        return subprocess.CompletedProcess([*args], code, *texts)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait(30)


def _customizes(environ: Mapping[str, str]) -> Iterator[bool]:
    """Yield for each directory of PYTHONPATH whether it has code that runs at the start, or another tpux."""
    for directory in environ.get("PYTHONPATH", "").split(os.pathsep):
        yield any(Path(directory, name).exists() for name in ("sitecustomize.py", "usercustomize.py", "tpux"))


def _serve(requests: socket.socket) -> None:
    for name in MODULES:
        __import__(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes children that have ended
    while True:
        request, files, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _run(json.loads(request), files)
        for file in files:
            os.close(file)


def _run(request: dict[str, object], files: list[int]) -> None:
    """Run a command in this process, which was forked for it, and end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    answer = files.pop()
    os.write(answer, f"{os.getpid()}\n".encode())
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    time.tzset()  # the time zone of that environment
    sys.argv = ["tpux", *request["args"]]  # type: ignore[misc]
    sys.path[:1] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    code: object = 1
    try:
        from tpux.cli.main import main

        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(answer, f"{code}\n".encode())
        os._exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))

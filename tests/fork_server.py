"""Run `tpux` and its supervisors in processes that are forked from one that has imported them.

Most of the CPU time of a command is imports. They are processes of their own, with their own environment, directory and
files; programs are started as always. What /proc shows of them (arguments, environment) is the fork server's: a test
that reads it sets `TPUX_TEST_OWN_PROCESS`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

MODULES = (
    *(f"tpux.cli.{name}" for name in ("create", "delete", "follow", "list", "main", "run", "resume")),
    *(f"tpux.cli.{name}" for name in ("show", "stop", "supervisor", "wait")),
    "tpux.config.loader",
    "tpux.lifecycle.create",
    "tpux.lifecycle.open",
    "tpux.store.locks",
    "tpux.supervisor.check",
    "tpux.supervisor.client",
    "tpux.supervisor.report",
    "tpux.supervisor.scheduler",
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
    sys.modules["tpux.supervisor.installation"].load_core()
    gc.collect()
    gc.freeze()  # or each child would copy the memory of all objects when it looks for garbage
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes children that have ended
    from_commands, to_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(from_commands, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            request, files, _, _ = socket.recv_fds(key.fileobj, LARGEST_REQUEST, 4)  # type: ignore[arg-type]
            if not request:  # of the tests' process; commands cannot close theirs, which this process has, too
                return
            if os.fork() == 0:
                selector.close()
                requests.close()
                from_commands.close()
                decoded = json.loads(request)
                sys.modules["tpux.supervisor.client"].subprocess = _Starter(to_server)  # type: ignore[attr-defined]
                (_run_module if "module" in decoded else _run)(decoded, files)
            for file in files:
                os.close(file)


def _run(request: dict[str, object], files: list[int]) -> None:
    """Run a command in this process, which was forked for it, and end it."""
    answer = files.pop()
    os.write(answer, f"{os.getpid()}\n".encode())
    _become(request, files)
    sys.argv = ["tpux", *request["args"]]  # type: ignore[misc]
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


def _run_module(request: dict[str, object], files: list[int]) -> None:
    """Run a module in this process, as `python -m` does, and end it."""
    os.setsid()
    _become(request, files)
    sys.argv = [str(request["module"]), *request["args"]]  # type: ignore[misc]
    code: object = 1
    try:
        runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:  # noqa: BLE001  (as the interpreter does)
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 1)


def _become(request: dict[str, object], files: list[int]) -> None:
    """Take over the files, the directory and the environment of a request."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    time.tzset()  # the time zone of that environment
    sys.path[:1] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


class _Starter:
    """Stands in for the module `subprocess` where commands start supervisors: the fork server starts them.

    Args:
        server: the socket of the fork server for it.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server = server

    def __getattr__(self, name: str) -> object:
        return getattr(subprocess, name)

    def Popen(  # noqa: N802
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: BinaryIO,
        stderr: BinaryIO,
        cwd: str,
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> None:
        """Start `python -m MODULE`, as `subprocess.Popen` does."""
        python, option, module, *args = command
        assert (python, option, stdin, start_new_session) == (sys.executable, "-m", subprocess.DEVNULL, True), command
        request = json.dumps({"module": module, "args": args, "cwd": cwd, "env": dict(env)}).encode()
        with open(os.devnull, "rb") as null:  # noqa: PTH123
            socket.send_fds(self._server, [request], [null.fileno(), stdout.fileno(), stderr.fileno()])


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))

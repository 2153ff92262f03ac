"""Run commands that start no job in the process of the test.

What a user sees of a command is the same as in a process of its own: the exit code, what it and its child processes
write to the descriptors 1 and 2, its environment, directory and arguments. Afterwards all of that is as it was, and
modules that were imported from the test's own directories are forgotten. Not the same is what Python does before and
after a command: its start, signals, `atexit`, and modules of installed packages that are imported already.
"""

from __future__ import annotations

import contextvars
import importlib
import io
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn
from unittest import mock

import typer.main

from tpux.cli.main import app, run
from tpux.plugin import stdout
from tpux.supervisor import client


def run_command(
    args: tuple[str, ...], *, cwd: Path, env: Mapping[str, str], stdin: str | None
) -> subprocess.CompletedProcess[str]:
    """Run `tpux` in this process, as `subprocess.run` does with `capture_output`, `text` and `errors="replace"`.

    Raises:
        AssertionError: the command would start a supervisor.
    """
    with ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write((stdin or "").encode())
        given.seek(0)
        with _descriptors(given, out, err), _environment(cwd, env), _modules_of(env), _no_supervisor() as started:
            code = contextvars.copy_context().run(_main, args)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(io.TextIOWrapper(file, "utf-8", "replace").read())
    assert not started, f"tpux {' '.join(args)} starts a supervisor: use the fixture `tpux`"
    return subprocess.CompletedProcess([*args], code, *texts)


def _main(args: tuple[str, ...]) -> int:
    with mock.patch.object(sys, "argv", ["tpux", *map(str, args)]):
        before = set(threading.enumerate())
        stdout.keep_stdout()
        try:
            code = run(typer.main.get_command(app))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        for thread in set(threading.enumerate()) - before:  # the interpreter waits for them, too
            if not thread.daemon:
                thread.join()
        return code


@contextmanager
def _descriptors(*files: BinaryIO) -> Iterator[None]:
    """Let the descriptors 0, 1 and 2 and Python's streams be files, as a new interpreter has them."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    for stream in streams[1:]:
        stream.flush()
    kept = [os.dup(number) for number in range(3)]
    for number, file in enumerate(files):
        os.dup2(file.fileno(), number)
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
        if stdout._descriptor.kept is not None:
            os.close(stdout._descriptor.kept)
            stdout._descriptor.kept = None
        for number, file in enumerate(kept):
            os.dup2(file, number)
            os.close(file)


@contextmanager
def _environment(cwd: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Let this process have another directory and environment, and so another time zone."""
    directory, environ = os.open(".", os.O_PATH), dict(os.environ)

    def replace(by: Mapping[str, str]) -> None:
        os.environ.clear()
        os.environ.update(by)
        time.tzset()

    try:
        os.chdir(cwd)
        replace(env)
        yield
    finally:
        replace(environ)
        os.fchdir(directory)
        os.close(directory)


@contextmanager
def _modules_of(env: Mapping[str, str]) -> Iterator[None]:
    """Let modules be found in the directories of PYTHONPATH; those that come from there are forgotten afterwards."""
    own = [directory for directory in env.get("PYTHONPATH", "").split(os.pathsep) if directory not in ("", *sys.path)]
    importlib.invalidate_caches()
    try:
        with mock.patch.object(sys, "path", [*own, *sys.path]):
            yield
    finally:
        for name, module in sys.modules.copy().items():
            if (getattr(module, "__file__", None) or "").startswith(tuple(f"{directory}/" for directory in own)):
                del sys.modules[name]


@contextmanager
def _no_supervisor() -> Iterator[list[str]]:
    """Let the start of a supervisor fail. Yields the modules that were to be started."""
    started: list[str] = []

    def refuse(store: object, module: str) -> NoReturn:
        started.append(module)
        raise RuntimeError(f"no {module} is started here")

    with mock.patch.object(client, "start_process", refuse):
        yield started

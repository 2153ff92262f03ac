"""Plugins without a dist, each a file: those that a config names, the user's own, and the copies that a job has."""

from __future__ import annotations

import itertools
import os
import shlex
import stat
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import ClassVar

from tpux import env
from tpux.errors import TpuxError
from tpux.plugin import limited
from tpux.plugin.entrypoints import InstalledPlugin, is_interrupt, name_problem, reason
from tpux.plugin.stdout import stdout_to_stderr

DIST = "local file"
"""In place of the name of a dist, for people."""
DIRECTORY = Path("plugins")
"""Where a job has its files, below the directory of its config."""
IMPORT_LIMIT = 10.0
"""Seconds that the import of a file may take."""
STORED_LIMIT = 60.0
"""The same of a job's copy, which many jobs may import at once after a reboot."""
_count = itertools.count()


@dataclass(frozen=True)
class LocalPlugin(InstalledPlugin):
    """A plugin without a dist; the version is the path, and what is imported a module that no other job has.

    Attributes:
        content: of a file that the user gives, as it was when it was checked; None: it is read when it is imported.
    """

    content: bytes | None = field(default=None, repr=False)
    refused: ClassVar[frozenset[str]] = frozenset(
        {"provision", "inspect", "release", "tpu_section", "find_machines", "find_orphans", "connect", "shell_on"}
    )
    """The hooks of allocators and transports: the release of machines must not depend on a file."""

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.version)

    def load(self) -> object:
        """Import and return the module; as `InstalledPlugin.load`, and in time.

        Raises:
            TpuxError: it cannot be imported, or not be trusted; with the line.
        """
        if self.broken:
            raise TpuxError(self.broken, hint=self.hint)
        threads, ended = list[int](), list[bool]()
        limit = STORED_LIMIT if self.content is None else IMPORT_LIMIT

        def run() -> ModuleType:
            threads.append(threading.get_ident())
            try:
                with stdout_to_stderr():
                    return self._import()
            finally:
                ended.append(True)

        try:
            return limited.call(run, limit)
        except TpuxError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            message, frame = reason(error), sys._current_frames().get(threads[0]) if threads else None  # noqa: SLF001
            line = self.line_of(error)
            if isinstance(error, TimeoutError) and not ended:
                message = f"its import has not ended within {limit:.0f} s"
                line = self._line(traceback.walk_stack(frame))
            raise TpuxError(f"{self.path}{line}: {message}", hint=self.hint or "correct the file") from error

    @staticmethod
    def may_pass(error: TpuxError) -> bool:
        """Return whether an error of `load` may end without a change of the file: it was slow, or something scarce."""
        return isinstance(error.__cause__, (OSError, MemoryError))

    def _import(self) -> ModuleType:
        source = _read(self.path) if self.content is None else self.content
        module = ModuleType(self.value)
        module.__file__ = str(self.path)
        sys.modules[self.value] = module
        try:
            exec(compile(source, str(self.path), "exec"), vars(module))  # noqa: S102  (as an import does)
        except BaseException:
            self.forget()
            raise
        return module

    def forget(self) -> None:
        """Let the module be freed, once nothing uses it."""
        sys.modules.pop(self.value, None)

    def line_of(self, error: BaseException) -> str:
        """Return `:LINE`, where in the file an exception comes from; "" if it does not come from there."""
        if isinstance(error, SyntaxError) and error.filename == str(self.path):
            return f":{error.lineno}"
        return self._line(reversed([*traceback.walk_tb(error.__traceback__)]))

    def _line(self, stack: Iterable[tuple[FrameType, int]]) -> str:
        """Return `:LINE` of the first of these frames that runs the file; "" if none does."""
        lines = (line for frame, line in stack if frame.f_code.co_filename == str(self.path))
        return next((f":{line}" for line in lines), "")


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # of a pipe, nobody may ever open the other end


def _read(path: Path) -> bytes:
    """Read a file that nobody but the user, or root, could have written, as ssh does with its own.

    Raises:
        TpuxError: it cannot be read, or not be trusted.
    """
    try:
        with open(path, "rb", opener=_open) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise TpuxError(f"{path} is no regular file")
            if status.st_uid not in {0, os.getuid()}:
                raise TpuxError(f"{path} belongs to another user", hint="use a copy of your own")
            if status.st_mode & 0o022:
                problem = f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
                raise TpuxError(problem, hint=f"chmod go-w {shlex.quote(str(path))}")
            return file.read()
    except OSError as error:
        raise TpuxError(f"{path} cannot be read: {error.strerror}") from error


def stored(directory: Path, owner: str, job: int = 0) -> dict[str, InstalledPlugin]:
    """Return the plugins in a directory of a job, by name; imports none.

    Args:
        directory: the directory, which need not exist.
        owner: the job, in the names of their modules.
        job: its number, in what there is to do about a copy that does not work; 0 if it has none.
    """
    hint = f"correct the file that it is a copy of, then: tpux resume {job} --sync" if job else ""
    return {path.stem: replace(_plugin(path, owner), hint=hint) for path in sorted(directory.glob("*.py"))}


def found(
    named: Iterable[Path], installed: Mapping[str, InstalledPlugin], own: Iterable[Path] = ()
) -> dict[str, InstalledPlugin]:
    """Return the plugins for a config that the user gives, by name; imports none.

    Args:
        named: the files that the config names.
        installed: the installed plugins, whose names no file may have.
        own: the user's own files.
    """
    plugins: dict[str, InstalledPlugin] = {}
    for path in [*named, *own]:
        plugin = _plugin(path, "new")
        problem, hint = name_problem(plugin.name), "rename the file"
        rival = plugins.get(plugin.name) or installed.get(plugin.name)
        if rival is not None:
            problem = f"{rival.dist} {rival.version} and {DIST} {path} both use the name {plugin.name!r}"
        else:
            try:
                plugin = replace(plugin, content=_read(path))
            except TpuxError as error:
                problem, hint = error.message, error.hint
        plugins[plugin.name] = replace(plugin, broken=problem, hint=hint if problem else "")
    return plugins


def contents(plugins: Iterable[InstalledPlugin]) -> dict[Path, bytes]:
    """Return what those of these plugins that are files had in them when they were checked."""
    files = (one for one in plugins if isinstance(one, LocalPlugin))
    return {one.path: one.content for one in files if one.content is not None}


def own_files() -> list[Path]:
    """Return the files in the user's own directory of plugins."""
    return sorted(env.plugins_directory().glob("*.py"))


def _plugin(path: Path, owner: str) -> LocalPlugin:
    module = f"tpux_file_{owner}_{next(_count)}_{path.stem}".replace("-", "_")
    return LocalPlugin(path.stem, DIST, str(path), module)

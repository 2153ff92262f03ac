"""The installation that this process runs from: where it is, and whether it has changed since the process started."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import tpux
from tpux.clock import Clock
from tpux.plugin import entrypoints
from tpux.remote import script

LOOK_EVERY = 2.0
"""Seconds between two looks at the files, which take a few milliseconds."""
LOOK_EVERY_REAL = 0.2
"""The same in real seconds, however fast the clock is."""
SHARE = 0.02
"""The share of the time that looks take at most: the next one waits longer on a slow file system."""
QUIET_FOR = 10.0
"""Seconds without a change after which an installation is taken to be complete."""

SOURCES = (".py", ".sh", ".so")
METADATA = (".dist-info", ".egg-info", ".egg-link", ".pth")
Stamps = Mapping[str, int]
"""A digest of the names and times of the files below each root."""


def load_core() -> None:
    """Import all of core that a supervisor uses, and read the worker's scripts.

    A module or script that is first read after an upgrade would not fit those that were read before.
    """
    for found in pkgutil.iter_modules(tpux.__path__, "tpux."):
        if found.name not in {"tpux.cli", "tpux.__main__"}:
            module = importlib.import_module(found.name)
            for inner in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{found.name}."):
                if not inner.name.endswith("__main__"):
                    importlib.import_module(inner.name)
    script.read_all()


class UpgradeCheck:
    """Watches the metadata of all installed dists, and the sources of core, plugins and editable installs.

    Args:
        clock: the current time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._roots: set[str] = set()
        self._modules = 0
        self._used: dict[str, int] = {}
        self.stamps: Stamps = {}
        self._add_roots()
        self._changed_at = self._looked_at = clock.monotonic()
        self._look_at_real = time.monotonic() + LOOK_EVERY_REAL

    @property
    def changed(self) -> bool:
        """True if the installation differs from the one that this process uses, as of the last look."""
        return self.stamps != self._used

    @property
    def quiet(self) -> bool:
        """True if it has not changed for `QUIET_FOR`."""
        return self._clock.monotonic() - self._changed_at >= QUIET_FOR

    def look(self, *, now: bool = False) -> None:
        """Look at the files.

        Args:
            now: also if the last look was a short time ago.
        """
        at, real = self._clock.monotonic(), time.monotonic()
        if not now and (at - self._looked_at < LOOK_EVERY or real < self._look_at_real):
            return
        self._looked_at = at
        self._add_roots()
        stamps = {root: _stamp(root) for root in self._roots}
        if stamps != self.stamps:
            self.stamps, self._changed_at = stamps, at
        self._look_at_real = real + max(LOOK_EVERY_REAL, (time.monotonic() - real) / SHARE)

    def _add_roots(self) -> None:
        """Add what was imported since the last look. A root is a directory of `sys.path`, a package or a module."""
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        for root in {path for path in sys.path if path} | _plugin_sources() | _imported_sources():
            if root not in self._roots:
                self._roots.add(root)
                self._used[root] = _stamp(root)
                self.stamps = {**self.stamps, root: self._used[root]}


def _plugin_sources() -> set[str]:
    """Return the packages and modules of core and of all installed plugins."""
    words = {found.value.partition(":")[0].partition(".")[0] for found in entrypoints.find("tpux").values()}
    found: set[str] = set()
    for word in {*words, "tpux"}:
        try:
            specification = importlib.util.find_spec(word)
        except (ImportError, ValueError):  # a broken plugin
            continue
        if specification is not None:
            found.update(specification.submodule_search_locations or filter(None, [specification.origin]))
    return found


def _imported_sources() -> set[str]:
    """Return the top-level packages and modules that were imported from outside of the installed dists."""
    library = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and name != "__main__" and isinstance(file, str):
            path = Path(file)
            if not file.startswith(library) and "site-packages" not in path.parts and "dist-packages" not in path.parts:
                found.add(str(path.parent if path.name == "__init__.py" else path))
    return found


def _stamp(root: str) -> int:
    if os.path.isfile(root):  # noqa: PTH113  (called often)
        return hash(tuple(_sources(root)))
    names = frozenset(_metadata(root)) if root in sys.path else frozenset(_sources(root))
    return hash(names)


def _metadata(directory: str) -> Iterator[tuple[str, int, int]]:
    """Yield names and times of the metadata of the dists in a directory of `sys.path`."""
    try:
        entries = [entry for entry in os.scandir(directory) if entry.name.endswith(METADATA)]
    except OSError:  # a zip file, or nothing
        return
    for entry in entries:
        for path in (entry.path, f"{entry.path}/entry_points.txt"):
            try:
                found = os.stat(path)  # noqa: PTH116  (called often)
            except OSError:
                continue
            yield path, found.st_mtime_ns, found.st_ino


def _sources(path: str) -> Iterator[tuple[str, int, int]]:
    """Yield names, times and sizes of a source file, or of all below a directory."""
    try:
        if os.path.isfile(path):  # noqa: PTH113  (called often)
            found = os.stat(path)  # noqa: PTH116
            yield path, found.st_mtime_ns, found.st_size
            return
        entries = list(os.scandir(path))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir():
            if not entry.name.startswith((".", "__pycache__")):
                yield from _sources(entry.path)
        elif entry.name.endswith(SOURCES):
            yield from _sources(entry.path)

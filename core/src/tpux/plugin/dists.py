"""The entry points of the installed dists, read from their files.

`importlib.metadata` imports the parser of e-mails, and parses each dist's description with it: a fifth of the time of
`tpux --help`. Archives and eggs on `sys.path` are left to it. Dists that only an import hook knows are not found.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EntryPoint:
    """An entry point, and the dist that declares it.

    Attributes:
        name: the part before the `=`.
        value: the part after it, `module` or `module:object`.
        dist: the name of the dist; "unknown" if its metadata cannot be read.
        version: the version of the dist; "" if its metadata cannot be read.
    """

    name: str
    value: str
    dist: str
    version: str


def entry_points(group: str, without: Collection[str] = ()) -> list[EntryPoint]:
    """Return the entry points of a group, in the order of `sys.path`.

    Of two copies of a dist the first on the path counts whose entry points can be read; the others are named in a
    warning.

    Args:
        group: the group.
        without: absolute paths of directories that are left out.
    """
    found: list[EntryPoint] = []
    seen: set[str] = set()
    for directory in dict.fromkeys(map(str, sys.path)):
        if os.path.abspath(directory) in without:  # noqa: PTH100  (called often)
            continue
        for info in _infos(directory or "."):
            name = _name(info)
            if name not in seen and (entries := _of_dist(info, group)) is not None:
                seen.add(name)
                found += entries
        if directory.endswith(".egg") or os.path.isfile(directory):  # noqa: PTH113  (called often)
            found += _of_archive(directory, group, seen)
    return found


def normalized(name: str) -> str:
    """Return a name as package indexes compare it."""
    return re.sub("[-_.]+", "-", name).lower()


def _infos(directory: str) -> list[str]:
    """Return the directories with the metadata of the dists that are installed in a directory."""
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except OSError:
        return []
    return [f"{directory}/{name}" for name in names if name.endswith((".dist-info", ".egg-info"))]


def _name(info: str) -> str:
    """Return the normalized name of a dist, from that of the directory of its metadata (`NAME-VERSION.dist-info`)."""
    stem = os.path.basename(info).removesuffix(".dist-info").removesuffix(".egg-info")  # noqa: PTH119
    return normalized(stem.partition("-")[0])


def _of_dist(info: str, group: str) -> list[EntryPoint] | None:
    """Return the entry points of a dist; None if they cannot be read, after a warning."""
    try:
        with open(f"{info}/entry_points.txt", encoding="utf-8") as file:  # noqa: PTH123
            text = file.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):  # as for Python: it has none
        return []
    except (OSError, ValueError) as error:
        _warn(info, error)
        return None
    if group not in text:
        return []
    dist, version = _name_and_version(info)
    try:
        return [EntryPoint(name, value, dist, version) for name, value in _parse(text, group)]
    except ValueError as error:
        _warn(dist, error)
        return None


def _parse(text: str, group: str) -> Iterator[tuple[str, str]]:
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if not equals:
                raise ValueError(f"entry_points.txt:{number}: expected NAME = VALUE")
            yield name.strip(), value.strip()


def _name_and_version(info: str) -> tuple[str, str]:
    fields: dict[str, str] = {}
    for name in ("METADATA", "PKG-INFO"):
        try:
            with open(f"{info}/{name}", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                for line in file:
                    if not line.strip():
                        break
                    key, _, value = line.partition(":")
                    fields.setdefault(key.lower(), value.strip())
            break
        except OSError:
            continue
    return fields.get("name") or "unknown", fields.get("version") or ""


def _of_archive(path: str, group: str, seen: set[str]) -> Iterator[EntryPoint]:
    from importlib.metadata import distributions

    for dist in distributions(path=[path]):
        try:
            name, version = dist.name or "unknown", dist.version or ""
            if normalized(name) not in seen:
                seen.add(normalized(name))
                chosen = [entry for entry in dist.entry_points if entry.group == group]
                yield from (EntryPoint(entry.name, entry.value, name, version) for entry in chosen)
        except Exception as error:  # noqa: BLE001  (an archive may be damaged in any way)
            _warn(path, error)


def _warn(dist: str, error: Exception) -> None:
    log.warning("the entry points of %s cannot be read: %s: %s", dist, type(error).__name__, error)

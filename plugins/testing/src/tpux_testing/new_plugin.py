"""A new plugin's project, rendered from the files in `templates`.

A template is the plugin `sample` itself: `sample`, `Sample` and `tpux_sample` in it become the new plugin's names, so
what checks the code of this package checks the templates as well.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from tpux.errors import TpuxError, UsageError

SAMPLE = "sample"
_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


@dataclass(frozen=True)
class Kind:
    """A kind of plugin that has a template.

    Attributes:
        group: of its entry point, as pyproject.toml has it.
        attribute: what of the module the entry point names.
        dependencies: what it requires beside tpux-core.
        run: the command that shows it.
    """

    group: str = "tpux"
    attribute: str = ""
    dependencies: tuple[str, ...] = ()
    run: str = "tpux run example.yaml"


KINDS = {
    "module": Kind(),
    "environment": Kind(),
    "allocator": Kind(dependencies=("tpux-plugin-local>=0.1",)),
    "transport": Kind(),
    "detector": Kind(),
    "solver": Kind(),
    "rule": Kind(),
    "listener": Kind(),
    "command": Kind('"tpux.commands"', ":app", run=f"tpux {SAMPLE}"),
}


def check_name(name: str, taken: Mapping[str, str]) -> None:
    """Check that a new plugin can have a name.

    Args:
        name: the name.
        taken: by name, what has it.

    Raises:
        UsageError: it cannot.
    """
    if not _NAME.fullmatch(name):
        hint = "lower-case letters, digits, - and _, beginning with a letter, such as my-plugin"
        raise UsageError(f"{name!r} cannot be a plugin's name", hint=hint)
    if owner := taken.get(name):
        raise UsageError(f"the name {name!r} is taken: {owner}", hint=f"tpux plugins new my-{name} --kind KIND")


def commands(name: str, kind: str) -> list[str]:
    """Return the three commands that follow: install, test and use the plugin."""
    return ["pip install -e '.[test]'", "python -m pytest", KINDS[kind].run.replace(SAMPLE, name)]


def commands_of_package(name: str) -> list[str]:
    """Return the commands that follow when a file has become a dist: install, test and show the plugin."""
    return [*commands(name, "rule")[:2], f"tpux plugins show {name}"]


def write(name: str, kind: str, parent: Path) -> Path:
    """Write the project of a new plugin; it is there as a whole, or not at all.

    Args:
        name: the plugin's name.
        kind: a key of `KINDS`.
        parent: where its directory will be.

    Returns:
        The directory.

    Raises:
        UsageError: the directory exists.
        TpuxError: it cannot be written.
    """
    return _write(name, render(name, kind), parent)


def write_package(name: str, file: Path, parent: Path) -> Path:
    """Write the project of a dist that has a plugin that is a file; the arguments and errors are those of `write`.

    Args:
        name: the plugin's name.
        file: its code.
        parent: where its directory will be.

    Returns:
        The directory.
    """
    try:
        code = file.read_text()
    except (OSError, ValueError) as error:
        raise TpuxError(f"cannot read {file}: {error}") from error
    return _write(name, render_package(name, code), parent)


def _write(name: str, project: Mapping[str, str], parent: Path) -> Path:
    directory = parent / f"tpux-plugin-{name}"
    if directory.exists() or directory.is_symlink():
        raise UsageError(f"{directory} exists", hint=f"remove it, or name another place: --directory {parent}/...")
    try:
        new = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=parent))
    except OSError as error:
        raise TpuxError(
            f"cannot write {directory}: {error.strerror}", hint="name a directory: --directory DIR"
        ) from error
    try:
        for path, text in project.items():
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            (new / path).write_text(text)
        new.chmod(0o755)
        new.rename(directory)
    except OSError as error:
        raise TpuxError(f"cannot write {directory}: {error.strerror}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return directory


def render(name: str, kind: str) -> dict[str, str]:
    """Return the files of a new plugin's project by path."""
    return _render(name, KINDS[kind], kind, kind, commands(SAMPLE, kind))


def render_package(name: str, code: str) -> dict[str, str]:
    """Return the files of a project by path that has the plugin of a file: its code is as it is, and it has no example.

    Args:
        name: the plugin's name.
        code: the content of the file.
    """
    project = _render(name, Kind(), "plugin", "file", commands_of_package(SAMPLE))
    readme = "".join(line for line in project["README.md"].splitlines(keepends=True) if "example.yaml" not in line)
    return {**project, "README.md": readme, f"src/{_module(name)}/__init__.py": code}


def _render(name: str, kind: Kind, word: str, directory: str, typed: list[str]) -> dict[str, str]:
    """Return the files of a project by path.

    Args:
        name: the plugin's name.
        kind: what its entry point is.
        word: what it is called.
        directory: that of its templates.
        typed: the commands that follow.
    """
    templates, module = files("tpux_testing") / "templates", _module(name)
    substitutes = {
        "kind": word,
        "group": kind.group,
        "attribute": kind.attribute,
        "dependencies": "".join(f', "{one}"' for one in kind.dependencies),
        "commands": "\n".join(typed),
    }
    own = {path: templates / directory / one for path, one in _OF_KIND.items()}
    texts = {
        **{path: Template((templates / f"{path}.in").read_text()).substitute(substitutes) for path in _COMMON},
        **{path.replace("MODULE", module): one.read_text() for path, one in own.items() if one.is_file()},
        f"src/{module}/py.typed": "",
    }
    return {path: _renamed(text, name, module) for path, text in texts.items()}


def _module(name: str) -> str:
    return f"tpux_{name.replace('-', '_')}"


_COMMON = ("pyproject.toml", "README.md")
_OF_KIND = {
    "src/MODULE/__init__.py": "plugin.py",
    "tests/test_contract.py": "contract.py",
    "example.yaml": "example.yaml",
}
"""The files of a project that differ by kind, and their templates."""


def _renamed(text: str, name: str, module: str) -> str:
    camel = "".join(part.capitalize() for part in re.split("[-_]", name))
    names = {f"tpux_{SAMPLE}": module, SAMPLE.capitalize(): camel, SAMPLE: name}
    return re.sub("|".join(names), lambda found: names[found[0]], text)  # at once: the name may contain "sample"

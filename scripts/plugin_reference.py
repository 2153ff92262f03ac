"""Print docs/plugins/reference.md, generated from the hooks and the public names; `make docs` writes the file."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import tpux
import tpux_testing
import tpux_worker_tools
from tpux import api, fields
from tpux.model import events
from tpux.plugin import spec

INTRODUCTION = """\
# Reference

Generated from the docstrings by `make docs`. A plugin may use what is on this page, and no other name of core:
[compatibility](compatibility.md). The [index](README.md) says which hooks a kind of plugin implements."""

SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$", re.MULTILINE)
QUOTED = re.compile(r"""(: |-> )(?:'([^']*)'|"([^"]*)")""")
SINCE = re.compile(r"\s*^Since (\d+\.\d+)\.$", re.MULTILINE)
MODULES: dict[ModuleType, str] = {
    tpux: "For plugins: `from tpux import hookimpl, sh`.",
    fields: "For the keys of a section: `from tpux.fields import Duration`.",
    tpux_worker_tools: "For modules, with `pip install tpux-plugin-worker-tools`: `from tpux_worker_tools import apt`.",
    api: "For commands, scripts and notebooks: `from tpux import api`.",
    tpux_testing: "For tests, with `pip install tpux-plugin-testing`: `from tpux_testing import run_job`.",
}


def main() -> None:
    """Print the page."""
    parts = [INTRODUCTION, "## Hooks", *map(hook, hooks())]
    for module, description in MODULES.items():
        parts += [f"## {module.__name__}", description]
        parts += [name(module, one) for one in sorted(module.__all__, key=str.lower)]
    sys.stdout.write("\n\n".join(parts) + "\n")


def hooks() -> Iterator[str]:
    """Return the names of all hooks, in the order of `spec.py`."""
    for one, function in vars(spec).items():
        if inspect.isfunction(function) and hasattr(function, f"{spec.PROJECT}_spec"):
            yield one


def hook(one: str) -> str:
    """Return the section about a hook."""
    function = getattr(spec, one)
    text = inspect.getdoc(function) or ""
    since = SINCE.search(text)
    if since is None:
        raise SystemExit(f"the docstring of the hook {one} does not end with `Since X.Y.`")
    return f"### {one}\n\n{signature(one, function)}\n\n{prose(SINCE.sub('', text))}\n\nSince {since[1]}."


def name(module: ModuleType, one: str) -> str:
    """Return the section about a public name."""
    value = getattr(module, one, None) or import_module(f"{module.__name__}.{one}")
    title = f"### {one}" if module is tpux else f"### {module.__name__.removeprefix('tpux.')}.{one}"
    if value is events:
        return f"{title}\n\nThe types of events: see [events.md](../events.md)."
    if isinstance(value, ModuleType):
        return module_of_functions(title, value)
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        described = constant(module, one)
        shown = f" = {value!r}" if isinstance(value, (int, str)) else ""
        return "\n\n".join(filter(None, [title, f"```python\n{one}{shown}\n```" if shown else "", described]))
    text = inspect.getdoc(value) or ""
    return "\n\n".join(filter(None, [title, signature(one, value), prose(text), methods(value)]))


def module_of_functions(title: str, module: ModuleType) -> str:
    """Return the section about a public module, with its functions that say since when they are there."""
    parts = [title, prose(inspect.getdoc(module) or "")]
    for one, function in inspect.getmembers(module, inspect.isfunction):
        text = inspect.getdoc(function) or ""
        if not one.startswith("_") and "Since " in text:
            parts += [signature(f"{title.removeprefix('### ')}.{one}", function), prose(text)]
    return "\n\n".join(parts)


def signature(one: str, value: object) -> str:
    """Return how a class or function is called, as a code block; "" if that says nothing."""
    if inspect.isclass(value) and (issubclass(value, tpux.Section) or getattr(value, "_is_protocol", False)):
        return ""
    try:
        called = parameters(value)
    except ValueError:
        return ""
    return f"```python\n{one}{called.removesuffix(' -> None') if inspect.isclass(value) else called}\n```"


def parameters(value: object) -> str:
    """Return the parameters and the answer of a class or function, as they are written in the code."""
    called = str(inspect.signature(value)).replace("<factory>", "...")  # type: ignore[arg-type]
    called = re.sub(r"^\((self|cls)(, )?", "(", QUOTED.sub(r"\1\2\3", called))
    return re.sub(r"mode: int = (\d+)", lambda mode: f"mode: int = 0o{int(mode[1]):o}", called)


def methods(value: object) -> str:
    """Return the public methods and properties that a class itself defines: how each is called, its first sentence."""
    if not inspect.isclass(value):
        return ""
    lines = []
    for one, member in vars(value).items():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if one.startswith("_") or not inspect.isfunction(function):
            continue
        head = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        called = "" if isinstance(member, property) else parameters(function).removesuffix(" -> None")
        lines.append(f"- `{one}{called}`: {head}")
    return "\n".join(lines)


def prose(text: str) -> str:
    """Return a docstring as Markdown."""
    head, *sections = SECTION.split(text)
    parts = [head.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title == "Example":
            parts.append(f"Example:\n\n```python\n{inspect.cleandoc(body)}\n```")
        elif title == "Returns":
            parts.append(f"Returns: {' '.join(body.split())}")
        else:
            entries = re.findall(r"^ {4}(\w+): (.*(?:\n {6,}.*)*)", body, re.MULTILINE)
            parts.append("\n".join([f"{title}:\n", *(f"- `{key}`: {' '.join(one.split())}" for key, one in entries)]))
    return "\n\n".join(parts)


def constant(module: ModuleType, one: str) -> str:
    """Return the docstring below the assignment of a name that is no class or function."""
    packages = [Path(file).parent for found in (tpux, module) if (file := found.__file__)]
    for path in sorted({file for directory in packages for file in directory.rglob("*.py")}):
        body = ast.parse(path.read_text()).body
        for assignment, below in zip(body, [*body[1:], None], strict=True):
            targets = assignment.targets if isinstance(assignment, ast.Assign) else []
            if not any(isinstance(target, ast.Name) and target.id == one for target in targets):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                return str(below.value.value)
            return f"```text\n{one} = {ast.unparse(assignment.value)}\n```"
    return ""


if __name__ == "__main__":
    main()

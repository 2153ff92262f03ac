"""Write the pages of the reference, generated from the hooks and the public names, into a directory; see `make docs`.

A page has the hooks of one part of `spec.py`, and names. Each begins with signatures; below are a paragraph, what the
arguments are, and what is returned and raised. Examples are on the pages of the kinds of plugins.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import tpux
import tpux_testing
import tpux_worker_tools
from tpux import api, fields
from tpux.model import events
from tpux.plugin import spec

GENERATED = (
    "Generated from the docstrings by `make docs`. Parts: [common](reference.md), [machines](reference-machines.md),\n"
    "[advanced](reference-advanced.md). A plugin may use what these pages have, and no other name of core:\n"
    "[compatibility](compatibility.md). The [index](README.md) says which hooks a kind of plugin implements.\n"
)
PAGES = {
    "common": ("reference.md", "Reference: common", [tpux, fields]),
    "machines": ("reference-machines.md", "Reference: machines", [tpux]),
    "advanced": ("reference-advanced.md", "Reference: advanced", [tpux, api, tpux_worker_tools, tpux_testing]),
}
"""By part: the file, its title, and the modules whose names it has."""
MACHINES = {
    *(
        "Allocation",
        "Denied",
        "MachineStatus",
        "Orphan",
        "ProvisionRequest",
        "Ready",
        "Released",
        "TpuSection",
        "Waiting",
    ),
    *("CHUNK_SIZE", "Host", "HostIdentityError", "HostUnreachableError"),
}
ADVANCED = {"API_VERSION", "Checkpoint", "ConfigError", "Peer", "UsageError", "plain_reason"}
"""Names of `tpux` on these two pages; all others are on the first one."""
DESCRIPTIONS: dict[ModuleType, str] = {
    tpux: "For plugins: `from tpux import hookimpl, sh`.",
    fields: "For the keys of a section: `from tpux.fields import Duration`.",
    tpux_worker_tools: "For modules, with `pip install tpux-plugin-worker-tools`: `from tpux_worker_tools import apt`.",
    api: "For commands, scripts and notebooks: `from tpux import api`.",
    tpux_testing: "For tests, with `pip install tpux-plugin-testing`: `from tpux_testing import run_job`.",
}
REPEATED = 2
"""An argument that so many have in the same words is described once, above them."""
EXAMPLES = ("module", "environment", "allocator", "transport", "detector", "solver-and-rule", "listener", "README")
"""The pages that have examples, the first one counts."""
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$", re.MULTILINE)
EXAMPLE = re.compile(r"(^|\s)Example: `.*?`(?=[.,])[^.]*?(?:`[^`]*`[^.`]*)*\.(?=\s|$)", re.DOTALL)
QUOTED = re.compile(r"""(: |-> )(?:'([^']*)'|"([^"]*)")""")
SINCE = re.compile(r"\s*\bSince (\d+\.\d+)\.$", re.MULTILINE)
PART = re.compile(r"^# --- (\w+)", re.MULTILINE)


def main() -> None:
    """Write the pages."""
    for name, text in pages().items():
        (Path(sys.argv[1]) / name).write_text(text)


def pages() -> dict[str, str]:
    """Return the pages by file."""
    found = {}
    for part, hooks in hooks_by_part().items():
        file, title, modules = PAGES[part]
        text = [f"# {title}\n", GENERATED, *hooks_section(hooks)]
        for module in modules:
            text += names_section(module, [one for one in module.__all__ if module is not tpux or part_of(one) == part])
        found[file] = "\n".join(text)
    return found


def part_of(name: str) -> str:
    """Return the part that has a name of `tpux`."""
    return "machines" if name in MACHINES else "advanced" if name in ADVANCED else "common"


def hooks_by_part() -> dict[str, list[str]]:
    """Return the names of all hooks, in the order of `spec.py`, by part: the comments there divide it."""
    _, *parts = PART.split(Path(spec.__file__).read_text())
    named = zip(parts[::2], parts[1::2], strict=True)
    return {part: re.findall(r"^@hookspec.*\ndef (\w+)", text, re.MULTILINE) for part, text in named}


def hooks_section(hooks: Iterable[str]) -> Iterator[str]:
    """Yield the lines about the hooks of a page."""
    functions = {one: getattr(spec, one) for one in hooks}
    yield "## Hooks\n"
    yield "```python"
    yield from (f"{one}{parameters(function)}" for one, function in functions.items())
    yield "```\n"
    repeated = repeated_in(functions.values())
    yield from introduction(repeated)
    for one, function in functions.items():
        text = inspect.getdoc(function) or ""
        since = SINCE.search(text)
        if since is None:
            raise SystemExit(f"the docstring of the hook {one} does not end with `Since X.Y.`")
        example = next((page for page in EXAMPLES if f"def {one}(" in page_text(page)), "")
        link = f" Example: [{example}.md]({example}.md)." if example else ""
        yield f"### {one}\n"
        yield from described(text, f" Since {since[1]}.{link}", leave_out=repeated)
        yield ""


def page_text(page: str) -> str:
    """Return a page about a kind of plugin."""
    return (Path(__file__).parent.parent / f"docs/plugins/{page}.md").read_text()


def names_section(module: ModuleType, names: Iterable[str]) -> Iterator[str]:
    """Yield the lines about names of a module: first all signatures, then what they are."""
    names = sorted(names, key=str.lower)
    values = {one: getattr(module, one, None) or import_module(f"{module.__name__}.{one}") for one in names}
    yield f"## {module.__name__}\n"
    yield f"{DESCRIPTIONS[module]}\n"
    called = [signature(one, value) for one, value in values.items()]
    for one, value in values.items():
        if isinstance(value, ModuleType):
            called += [signature(f"{one}.{name}", function) for name, function in functions_of(value)]
    if lines := list(filter(None, called)):
        yield "\n".join(["```python", *lines, "```\n"])
    repeated = repeated_in(value for value in values.values() if inspect.isfunction(value))
    yield from introduction(repeated)
    for one, value in values.items():
        if value is events:
            yield f"- **{one}**: the types of events, see [events.md](../events.md)."
        elif isinstance(value, ModuleType):
            yield f"- **{one}**: {first(value)}"
            for name, function in functions_of(value):
                yield f"  - `{one}.{name}`: {SINCE.sub('', first(function))}"
        elif inspect.isclass(value) or inspect.isfunction(value):
            paragraph, *lines = described(inspect.getdoc(value) or "", leave_out=repeated)
            yield "\n  ".join([f"- **{one}**: {paragraph}", *lines, *methods(value)])
        else:
            yield f"- **{one}**: {constant(module, one)}"
    yield ""


def repeated_in(functions: Iterable[object]) -> list[str]:
    """Return the descriptions of arguments that several functions have."""
    texts = (SECTION.split(SINCE.sub("", inspect.getdoc(function) or "")) for function in functions)
    count = Counter(line for _, *text in texts if "Args" in text for line in entries(text[text.index("Args") + 1]))
    common = {line.partition(":")[0]: line for line, number in reversed(count.most_common()) if number >= REPEATED}
    return [*common.values()]


def introduction(repeated: Iterable[str]) -> Iterator[str]:
    """Yield the line that has the descriptions of arguments that several functions have."""
    if lines := [line.removeprefix("- ") for line in repeated]:
        yield f"Where nothing else is said, {' '.join(lines)}\n"


def functions_of(module: ModuleType) -> list[tuple[str, object]]:
    """Return the functions of a public module that say since when they are there."""
    return [
        (one, function)
        for one, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not one.startswith("_") and "Since " in (function.__doc__ or "")
    ]


def first(value: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def described(text: str, note: str = "", *, leave_out: Iterable[str] = ()) -> Iterator[str]:
    """Yield a docstring as Markdown: a paragraph, and items of a list: arguments or attributes, and errors.

    Args:
        text: the docstring.
        note: follows the paragraph.
        leave_out: items that are above, since they are repeated.
    """
    head, *sections = SECTION.split(SINCE.sub("", text))
    bodies = dict(zip(sections[::2], sections[1::2], strict=True))
    returns = f" Returns: {' '.join(bodies['Returns'].split())}" if "Returns" in bodies else ""
    yield f"{' '.join(EXAMPLE.sub('', head).split())}{returns}{note}"
    yield from [
        line for name in ("Args", "Attributes") for line in entries(bodies.get(name, "")) if line not in leave_out
    ]
    raises = [f"{line[2:-1]}" for line in entries(bodies.get("Raises", ""))]
    yield from [f"- raises {'; '.join(raises)}."] if raises else []


def entries(body: str) -> list[str]:
    """Return the entries of a section of a docstring as items of a list."""
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {6,}.*)*)", body, re.MULTILINE)
    return [f"- `{key}`: {' '.join(text.split())}" for key, text in found]


def signature(one: str, value: object) -> str:
    """Return how a class or function is called; "" if that says nothing."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return ""
    if inspect.isclass(value) and (issubclass(value, tpux.Section) or getattr(value, "_is_protocol", False)):
        return ""
    try:
        called = parameters(value)
    except ValueError:
        return ""
    return f"{one}{called.removesuffix(' -> None') if inspect.isclass(value) else called}"


def parameters(value: object) -> str:
    """Return the parameters and the answer of a class or function, as they are written in the code."""
    called = str(inspect.signature(value)).replace("<factory>", "...")  # type: ignore[arg-type]
    called = re.sub(r"^\((self|cls)(, )?", "(", QUOTED.sub(r"\1\2\3", called))
    return re.sub(r"mode: int = (\d+)", lambda mode: f"mode: int = 0o{int(mode[1]):o}", called)


def methods(value: object) -> Iterator[str]:
    """Yield the public methods and properties that a class itself defines: how each is called, its first sentence."""
    for one, member in vars(value).items() if inspect.isclass(value) else ():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not one.startswith("_") and inspect.isfunction(function):
            called = "" if isinstance(member, property) else parameters(function).removesuffix(" -> None")
            yield f"- `{one}{called}`: {SINCE.sub('', first(function))}"


def constant(module: ModuleType, one: str) -> str:
    """Return what a name is that is no class or function: the docstring below its assignment, or its value."""
    packages = [Path(file).parent for found in (tpux, module) if (file := found.__file__)]
    for path in sorted({file for directory in packages for file in directory.rglob("*.py")}):
        body = ast.parse(path.read_text()).body
        for assignment, below in zip(body, [*body[1:], None], strict=True):
            targets = assignment.targets if isinstance(assignment, ast.Assign) else []
            if not any(isinstance(target, ast.Name) and target.id == one for target in targets):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                return " ".join(str(below.value.value).split())
            return f"`{ast.unparse(assignment.value)}`"
    raise SystemExit(f"{module.__name__}.{one} is not assigned anywhere")


if __name__ == "__main__":
    main()

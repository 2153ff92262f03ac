"""Measure the structure of core and the plugins, and fail if a number exceeds its limit: `make lint` runs this.

Files in circles: modules that import each other directly or indirectly, imports for type checking and inside functions
included. Code lines: lines of core that are neither blank, nor comment, nor docstring. What a plugin's author has to
know: the hooks, the names that plugins import, and the pages of the reference.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Mapping
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

from plugin_reference import hooks_by_part

ROOT = Path(__file__).parent.parent
MAX_FILES_IN_CIRCLES = 0
MAX_LAYERS = 9
"""The longest chain of modules of lifecycle that import each other: so many must be known to read the last one."""
MAX_HOOKS = 28
MAX_COMMON_HOOKS = 12
"""Those on the first page of the reference: what most plugins implement."""
MAX_NAMES = {"tpux": 41, "tpux.api": 25}
MAX_REFERENCE_LINES = 900
MAX_CODE_LINES = 21_522
_PROSE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def main() -> int:
    """Print the numbers, and return the exit code."""
    circles = [
        circle
        for source in sorted(ROOT.glob("*/src")) + sorted(ROOT.glob("plugins/*/src"))
        for circle in find_circles(source)
    ]
    for circle in circles:
        print(f"circle of {len(circle)} files: {', '.join(sorted(circle))}")
    in_circles = sum(map(len, circles))
    files = sorted((ROOT / "core/src").rglob("*.py"))
    code, every = sum(map(code_lines, files)), sum(len(path.read_text().splitlines()) for path in files)
    print(f"core: {code} code lines (limit {MAX_CODE_LINES}) in {len(files)} files, {1 - code / every:.0%} prose")
    print(f"files in circles of imports: {in_circles} (limit {MAX_FILES_IN_CIRCLES})")
    return int(in_circles > MAX_FILES_IN_CIRCLES or code > MAX_CODE_LINES or not print_contract())


def print_contract() -> bool:
    """Print how much a plugin's author has to know; return whether that is within the limits."""
    parts = hooks_by_part()
    pages = sorted((ROOT / "docs/plugins").glob("reference*.md"))
    numbers = [
        ("layers of lifecycle", count_layers(ROOT / "core/src", "tpux.lifecycle."), MAX_LAYERS),
        ("hooks", sum(map(len, parts.values())), MAX_HOOKS),
        ("hooks on the first page of the reference", len(parts["common"]), MAX_COMMON_HOOKS),
        ("lines of the reference", sum(len(page.read_text().splitlines()) for page in pages), MAX_REFERENCE_LINES),
        *((f"names in {name}", len(import_module(name).__all__), limit) for name, limit in MAX_NAMES.items()),
    ]
    for what, number, limit in numbers:
        print(f"{what}: {number} (limit {limit})")
    return all(number <= limit for _, number, limit in numbers)


def find_circles(source: Path) -> list[set[str]]:
    """Return the circles of imports below a source directory, largest sets of modules that reach each other."""
    imports = read_imports(source)
    reachable = {name: _reachable(name, imports) for name in imports}
    circles = {frozenset(other for other in reachable[name] if name in reachable[other]) for name in imports}
    return [set(circle) for circle in circles if len(circle) > 1]


def read_imports(source: Path) -> dict[str, set[str]]:
    """Return which modules below a source directory each of them imports, wherever the import stands."""
    modules = {_module(path.relative_to(source)): path for path in source.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                full = {alias: f"{node.module}.{alias}" for alias in (each.name for each in node.names)}
                imported |= {module if module in modules else node.module for module in full.values()}
        found[name] = (imported & modules.keys()) - {name}
    return found


def count_layers(source: Path, package: str) -> int:
    """Return how many modules the longest chain of imports within a package has; it must have no circles."""
    imports = {
        name: {other for other in imported if other.startswith(package)}
        for name, imported in read_imports(source).items()
        if name.startswith(package)
    }
    sorter, layers = TopologicalSorter(imports), 0
    sorter.prepare()
    while sorter.is_active():
        sorter.done(*sorter.get_ready())
        layers += 1
    return layers


def code_lines(path: Path) -> int:
    """Return how many lines of a Python file are neither blank, nor comment, nor docstring."""
    text = path.read_text()
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _PROSE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _reachable(name: str, imports: Mapping[str, set[str]]) -> set[str]:
    found, todo = set[str](), [name]
    while todo:
        for other in imports[todo.pop()] - found:
            found.add(other)
            todo.append(other)
    return found


if __name__ == "__main__":
    sys.exit(main())

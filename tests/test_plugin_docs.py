"""The examples of docs/plugins/ work: each page is followed as a reader would, and shows what it says is shown.

A code block that begins with `# FILE` is written to that file. A block `console` is run, line by line: the output must
be what the page shows, where `...` stands for anything. `pip install` makes the plugins of pyproject.toml available.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from tpux.plugin import spec
from tpux_testing import (
    allocator_contract,
    detector_contract,
    directory,
    environment_contract,
    listener_contract,
    transport_contract,
    worker,
)

DOCS = Path(__file__).parent.parent / "docs/plugins"
PAGES = sorted(path.name for path in DOCS.glob("*.md") if "```console" in path.read_text())
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.\w+)\n")
ENTRY_POINTS = re.compile(r'\[project\.entry-points\."?([\w.]+)"?\]\n((?:.+\n)*)')
READS = ("cat ", "tpux show", "tpux supervisor status", "tpux plugins")
"""Commands whose output may be that of the page only a moment later."""
FAST = {"mistakes.md", "solver-and-rule.md"}
"""Pages whose jobs are tried again: their backoff is not waited for."""
REPRESENTATIVE = "first-plugin.md"
"""The page that `make test` follows."""
CONTINUES = {"testing.md": "module.md"}
"""Pages that need the files of another one."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and the content of each code block of a page."""
    return BLOCK.findall((DOCS / page).read_text())


def write_file(directory: Path, text: str) -> Path | None:
    """Write a block that begins with the name of its file; return that file."""
    if not (named := FILE.match(text)):
        return None
    path = directory / named[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text[named.end() :])
    return path


def commands(block: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output that follows it."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def matches(expected: str, printed: str) -> bool:
    """Return whether an output is the expected one; `...` is any text, and on a line of its own any lines."""
    lines = [re.escape(line).replace(r"\.\.\.", ".*") + "\n" for line in expected.splitlines()]
    pattern = "".join(r"(?:.*\n)*?" if line == ".*\n" else line for line in lines)
    return re.fullmatch(pattern, printed if printed.endswith("\n") or not printed else printed + "\n") is not None


class Reader:
    """Someone who follows a page in a directory of their own."""

    def __init__(self, tpux, tmp_path: Path) -> None:
        self.tpux = tpux
        self.directory = tpux.work
        home = tmp_path / "user"
        home.mkdir()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        tpux.env |= {"HOME": str(home), "PATH": path}

    def follow(self, page: str) -> None:
        for language, text in blocks(page):
            if language != "console":
                write_file(self.directory, text)
                continue
            for command, expected in commands(text):
                if command.startswith("pip install -e"):
                    self.install()
                else:
                    self.run(command, expected)

    def install(self) -> None:
        """Install the project of pyproject.toml as `pip install -e .` would."""
        project = (self.directory / "pyproject.toml").read_text()
        [name], [version] = (
            re.findall(r'^name = "(.*)"', project, re.MULTILINE),
            re.findall(r'^version = "(.*)"', project, re.MULTILINE),
        )
        requirements = re.findall(r'"(tpux-core[^"]*)"', project)
        info = self.tpux.work.parent / f"site/{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requirements)]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *metadata, ""]))
        groups = [f"[{group}]\n{lines}" for group, lines in ENTRY_POINTS.findall(project)]
        (info / "entry_points.txt").write_text("".join(groups).replace('"', ""))
        paths = [str(info.parent), str(self.directory), os.environ.get("PYTHONPATH")]
        self.tpux.env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

    def run(self, command: str, expected: str) -> None:
        """Run a command until its output is the expected one; one that changes something is run once."""
        deadline = time.monotonic() + 60
        while not matches(expected, printed := self.output(command)):
            again = command.startswith(READS) and time.monotonic() < deadline
            assert again, f"$ {command}\n{printed}\n--- expected:\n{expected}\n--- log:\n{self.tpux.log()}"
            time.sleep(0.1)

    def output(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.tpux.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
        return done.stdout


@pytest.mark.parametrize(
    "page", [page if page == REPRESENTATIVE else pytest.param(page, marks=pytest.mark.system) for page in PAGES]
)
def test_a_page_shows_what_happens(tpux, tmp_path, page):
    if page in FAST:
        tpux.env["TPUX_CLOCK_RATE"] = "20"
    reader = Reader(tpux, tmp_path)
    for _, text in blocks(CONTINUES[page]) if page in CONTINUES else ():
        write_file(reader.directory, text)
    reader.follow(page)


def test_the_directory_is_up_to_date_and_has_what_this_repository_provides():
    script = [sys.executable, "scripts/plugin_directory.py"]
    printed = subprocess.run(script, cwd=DOCS.parent.parent, check=True, capture_output=True, text=True).stdout
    assert (DOCS / "directory.md").read_text() == printed, "make docs"
    listed = {entry.dist: [word.replace(" ", ".") for word in entry.words] for entry in directory.entries()}
    projects = [
        *DOCS.parent.parent.glob("plugins/*/pyproject.toml"),
        *DOCS.parent.parent.glob("examples/plugins/*/*.toml"),
    ]
    for project in [tomllib.loads(path.read_text())["project"] for path in projects]:
        groups = project.get("entry-points", {})
        words = [*groups.get("tpux", {}), *groups.get("tpux.commands", {})]
        assert not words or listed.pop(project["name"]) == words
    assert not listed


def test_search_reads_the_directory(runner):
    found = runner.json("plugins", "search", "container")
    assert [(one["dist"], one["words"], one["installed"]) for one in found] == [
        ("tpux-plugin-docker", ["docker"], True)
    ]
    assert runner.json("plugins", "search", "uv")[0]["dist"] == "tpux-plugin-uv-run"
    rules = runner("plugins", "search", "RULE").stdout.splitlines()
    assert rules[0].split() == ["DIST", "KIND", "INSTALLED", "ADDS"]
    assert rules[1].split()[:3] == ["tpux-plugin-move-on", "rule", "no"]
    assert "no plugin is known for 'zzz'" in runner("plugins", "search", "zzz").stderr


def test_the_reference_is_up_to_date(tmp_path):
    subprocess.run([sys.executable, "scripts/plugin_reference.py", tmp_path], cwd=DOCS.parent.parent, check=True)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in DOCS.glob("reference*.md")}, "`make docs` writes them"


def test_hooks_with_several_arguments_describe_each():
    hooks = {one: function for one, function in vars(spec).items() if hasattr(function, f"{spec.PROJECT}_spec")}
    lacking = {
        f"{one}({argument})"
        for one, function in hooks.items()
        if len(arguments := inspect.signature(function).parameters) > 1
        for argument in arguments
        if f"\n    {argument}: " not in (inspect.getdoc(function) or "")
    }
    assert not lacking


def test_nothing_says_that_it_is_since_a_later_version_than_this_one():
    """Such a bound, `tpux-core>=0.2`, cannot be installed."""
    installed = release(version("tpux-core"))
    later = [
        f"{path.name}: {since}"
        for path in [*(DOCS.parent.parent / "core/src").rglob("*.py"), *DOCS.glob("*.md")]
        for since in re.findall(r"\bsince (\d+\.\d+)", path.read_text(), re.IGNORECASE)
        if release(since) > installed
    ]
    assert not later


def release(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, minor, *_ = text.split(".")
    return int(major), int(minor)


@pytest.mark.parametrize(
    "page", ["README.md", "../failures.md"], ids=["which plugins implement them", "what follows if they fail"]
)
def test_every_hook_is_in_the_table_of(page):
    rows = "".join(line for line in (DOCS / page).read_text().splitlines(keepends=True) if line.startswith("|"))
    hooks = {one for one, function in vars(spec).items() if hasattr(function, f"{spec.PROJECT}_spec")}
    of_any_kind = {"config_section", "resolve", "preflight", "prepare_command", "stored_files"}
    expected = hooks - of_any_kind if page == "README.md" else hooks
    assert not [one for one in sorted(expected) if f"`{one}`" not in rows]


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_between_the_pages_lead_somewhere(page):
    text = re.sub(r"```.*?^```", "", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", text):
        path = (DOCS / target).resolve() if target else DOCS / page
        assert path.exists(), target
        titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if anchor else []
        names = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
        assert not anchor or anchor in names, f"{target}#{anchor}"


# --- the contracts of the examples --------------------------------------------------------------


def plugin_of(page: str, tmp_path: Path) -> tuple[str, ModuleType]:
    """Return the word and the module of a page's example."""
    [path] = [
        file for _, text in blocks(page) if (file := write_file(tmp_path, text)) and file.name.startswith("tpux_")
    ]
    loader = importlib.util.spec_from_file_location(path.stem, path)
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    return path.stem.removeprefix("tpux_"), module


def test_the_environment_keeps_its_contract(tmp_path):
    word, plugin = plugin_of("environment.md", tmp_path)
    environment_contract(word, plugin=plugin)


def test_the_allocator_keeps_its_contract(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    word, plugin = plugin_of("allocator.md", tmp_path)
    allocator_contract(word, {"tpu": {"machines": ["ant", "bee"]}}, plugin=plugin)


def test_the_transport_keeps_its_contract(tmp_path):
    word, plugin = plugin_of("transport.md", tmp_path)
    (tmp_path / "ant").mkdir()
    section = {"prefix": ["env", f"HOME={tmp_path}/ant"], "addresses": ["ant"]}
    config = {"through": section, "tpu": {"allocation_mode": word}}
    transport_contract(word, worker(address="ant"), config, plugin=plugin)


def test_the_detector_keeps_its_contract(tmp_path):
    word, plugin = plugin_of("detector.md", tmp_path)
    detector_contract(word, {"OSError: [Errno 28] No space left on device": "config"}, plugin=plugin)


def test_the_listener_keeps_its_contract(tmp_path):
    word, plugin = plugin_of("listener.md", tmp_path)
    listener_contract(word, {"notify": {"command": "cat > /dev/null"}}, plugin=plugin)


def test_each_hook_has_its_row_with_its_arguments():
    """In hooks.md: what it gets, where and how often it is called, what it may raise, and what follows."""
    rows = [line for line in (DOCS / "hooks.md").read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert all(len(row) == 6 and all(row) for row in cells)
    described = [re.fullmatch(r"`(\w+)\((.*)\)`", hook) for row in cells for hook in re.split(r"(?<=`), ", row[0])]
    found = [(match[1], match[2]) for match in described if match]
    hooks = {name: hook for name, hook in vars(spec).items() if hasattr(hook, "tpux_spec")}
    expected = [(name, ", ".join(inspect.signature(hook).parameters)) for name, hook in hooks.items()]
    assert sorted(found) == sorted(expected)

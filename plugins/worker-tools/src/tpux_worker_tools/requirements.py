"""Requirements that the code brings: what they refer to is on the workers if the code is set up before them.

pip.pypa.io, "Requirements File Format": `-r` and `-c` count from the file that has them, `--find-links` too if it is
there, and the path of a package from the directory in which pip runs. uv does the same. That directory is the code's;
for the file of a conda environment, it is the one of this file, as conda runs pip.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import NamedTuple, Protocol, runtime_checkable
from urllib.parse import unquote

from tpux import Finding, Job

_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_SHORT = {"-r": "-r", "-c": "-c", "-e": "-e", "-f": "-f", "-i": "-f"}
# Each with the short one that is read in the same way.
_LONG = {"--requirement": "-r", "--constraint": "-c", "--editable": "-e", "--find-links": "-f", "--index-url": "-f"}
_LONG |= {"--extra-index-url": "-f"}
_NAMED = re.compile(r"[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*")
_AFTER = re.compile(r"\s+(?:;|--\w).*$|;\s.*$")
_EXTRAS = re.compile(r"(?<=.)\[[\w\s,.-]*\]$")
_ARCHIVE = re.compile(r"\.(?:whl|zip|tar|tgz|tbz|txz|tar\.(?:gz|bz2|xz|lzma))$")
_ITEM = re.compile(r"\s*-\s+(?=['\"]?(?:-|\.|file:|[^\s:]*(?:\s@\s|\.(?:whl|zip|tar\.gz)['\"]?\s*(?:#|$))))(.*)")
_BUILD_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
"""The files of a project that say what an editable installation of it needs."""


class CodeFile(NamedTuple):
    """A file of the code.

    Attributes:
        digest: of its content.
        content: a file on this machine that has it.
    """

    digest: str
    content: Path


@dataclass(frozen=True)
class WorkerCode:
    """The code as a job's workers have it.

    Attributes:
        directory: where it is on a worker, relative to the home directory.
        source: the directory on this machine from which it was taken.
        files: its files by their paths.
    """

    directory: str
    source: Path
    files: Mapping[str, CodeFile]


@runtime_checkable
class BringsCode(Protocol):
    """The section of a module that copies code to the workers."""

    def on_workers(self, job: Job) -> WorkerCode | None:
        """Return the code as the job's workers have it; None if it is from no directory on this machine."""


@dataclass(frozen=True)
class Brought:
    """What the code brings for an environment.

    Attributes:
        directory: the code's directory on a worker, relative to the home directory; "" if the code is not used.
        file: the path of the requirements file in the code; "" if that is not in it.
        text: that file, and those to which it refers.
        digest: of all that is referred to; "" if nothing is.
        packages: a digest of the packages that an installer may take for installed although they are others.
        findings: what is referred to and is not on the workers.
    """

    directory: str = ""
    file: str = ""
    text: bytes = b""
    digest: str = ""
    packages: str = ""
    findings: tuple[Finding, ...] = ()


NOTHING = Brought()


def source_path(job: Job, word: str, key: str, file: Path | None) -> str:
    """Return where a file of a module's section is on this machine, to be stored by `resolve`; "" without the file.

    Since 0.1.

    Args:
        job: the job, whose directory has a copy of the file if its config is read again.
        word: the module's name.
        key: by which `resolve` stores it.
        file: the file.
    """
    if file is None:
        return ""
    path = file.absolute()
    if path.is_relative_to(job.directory):
        return str(job.previous.get(word, {}).get(key, path))
    return str(path.parent.resolve() / path.name)


def brought_by_code(
    job: Job, word: str, key: str, file: Path | None, lines: Sequence[str] = (), *, is_list: bool = False
) -> Brought:
    """Return what a job's code brings for the requirements of a module.

    Since 0.1.

    Args:
        job: the job.
        word: the module's name.
        key: by which `resolve` has stored what `source_path` returned for the file.
        file: the requirements file, or a copy of it.
        lines: further requirements, in the config.
        is_list: the file is the environment.yml of conda, which has requirements in a list.
    """
    search = _Search(word, _code_of(job, word))
    if file is not None:
        source = str(job.resolved.get(word, {}).get(key, file))
        search.read_file(file, Path(source), is_list=is_list)
    search.read_lines(lines)
    return search.result()


def _code_of(job: Job, word: str) -> WorkerCode | None:
    """Return the code that is set up before a module."""
    order = [*job.modules]
    earlier = order[: order.index(word)] if word in order else order
    sections = [job.sections[name] for name in earlier if name in job.sections]
    code = (section.on_workers(job) for section in sections if isinstance(section, BringsCode))
    return next(code, None)


class _Reference(NamedTuple):
    """A path in requirements.

    Attributes:
        option: the short name of its option; "" for a package.
        name: as it is written.
        line: its line, from 1.
        column: its column, from 1.
    """

    option: str
    name: str
    line: int
    column: int


@dataclass
class _Search:
    word: str
    code: WorkerCode | None
    file: str = ""
    findings: list[Finding] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    is_editable: bool = False
    reading: list[str] = field(default_factory=list)

    def read_file(self, file: Path, source: Path, *, is_list: bool) -> None:
        """Read the requirements file: the code's if it has it, else the one that is copied."""
        if self.code and source.is_relative_to(self.code.source):
            path = source.relative_to(self.code.source).as_posix()
            if path in self.code.files:
                self.file = path
                self._read_code_file(path, dirname(path) if is_list else "", is_list=is_list)
                return
        for each in _references(file.read_text(errors="replace"), is_list=is_list):
            if _local_path(each) and not _is_absolute(each):
                hint = "move this file into the code's directory" if self.code else self._without_code()
                self._report(each, str(source), "is not copied to the workers", hint)

    def read_lines(self, lines: Sequence[str]) -> None:
        """Read requirements of the config: each counts from the code's directory."""
        for each in _references("\n".join(lines), is_list=False):
            if not _local_path(each):
                continue
            where = f"{self.word}.requirements"
            if each.option in {"-r", "-c"} and not _is_absolute(each):
                hint = f"name a file that has it: {self.word}.requirements_file"
                self.findings.append(Finding("error", f"{each.name!r} is not copied to the workers", where, hint))
            elif self.code:
                self._follow(each, "", "", where)
            elif not _is_absolute(each):
                message = f"{each.name!r} is not copied to the workers"
                self.findings.append(Finding("error", message, where, self._without_code()))

    def result(self) -> Brought:
        """Return what was found."""
        if self.code is None or not (self.file or self.facts):
            return Brought(findings=tuple(self.findings))
        # An editable package stays in the directory of this job, of which another job must not use it.
        own = {"": self.code.directory} if self.is_editable else {}
        return Brought(
            directory=self.code.directory,
            file=self.file,
            text=b"\n".join(self.texts.values()),
            digest=_digest({**self.facts, **own}),
            packages=_digest(self.packages),
            findings=tuple(self.findings),
        )

    def _read_code_file(self, path: str, current: str, *, is_list: bool = False) -> None:
        if self.code is None or path in self.texts:
            return
        self.reading.append(path)
        content = self.code.files[path].content.read_bytes()
        self.texts[path] = content
        for each in _references(content.decode(errors="replace"), is_list=is_list):
            beside = dirname(path) if each.option in {"-r", "-c", "-f"} else current
            self._follow(each, beside, current, str(self.code.source / path))
        self.reading.pop()

    def _follow(self, each: _Reference, beside: str, current: str, where: str) -> None:
        """Note what a reference means: a file or a directory of the code, or an error."""
        given, code = _local_path(each), self.code
        if not given or code is None:
            return
        if given.startswith("/"):
            if Path(given).is_relative_to(code.source):
                hint = f"write its path in the code: ./{Path(given).relative_to(code.source)}"
                self._report(each, where, "is a path on this machine, not on the workers", hint)
            return
        path = normpath(join(beside, given))
        if each.option == "-f" and not _exists(code, path):
            path = normpath(join(current, given))
        if problem := _problem_of(code, path, beside):
            self._report(each, where, *problem)
        elif each.option in {"-r", "-c"}:
            self._follow_file(each, path, current, where)
        else:
            self._add_packages(each, path, where, code.files)

    def _follow_file(self, each: _Reference, path: str, current: str, where: str) -> None:
        """Read another requirements file of the code."""
        if self.code is None or path not in self.code.files:
            self._report(each, where, "is a directory", "name a requirements file")
        elif path in self.reading:
            self._report(each, where, "makes the file refer to itself, which pip follows forever", "remove the line")
        else:
            self.facts[path] = self.code.files[path].digest
            self._read_code_file(path, current)

    def _add_packages(self, each: _Reference, path: str, where: str, files: Mapping[str, CodeFile]) -> None:
        """Note the files of packages: an archive, a project, or a directory of archives."""
        if path in files:
            self.packages[path] = self.facts[path] = files[path].digest
            return
        prefix = "" if path == "." else f"{path}/"
        if each.option != "-f" and not any(f"{prefix}{name}" in files for name in _BUILD_FILES[:2]):
            self._report(each, where, "is no Python project", "it needs a pyproject.toml or a setup.py")
            return
        if each.option == "-e":
            self.is_editable = True
            self.facts |= {name: files[name].digest for file in _BUILD_FILES if (name := prefix + file) in files}
            return
        found = {name: file.digest for name, file in files.items() if name.startswith(prefix)}
        self.facts |= found
        self.packages |= found

    def _report(self, each: _Reference, where: str, what: str, hint: str) -> None:
        place = f"{where}:{each.line}:{each.column}" if "/" in where else where
        self.findings.append(Finding("error", f"{each.name!r} {what}", place, hint))

    def _without_code(self) -> str:
        return f"set `code: .`, which is copied before {self.word} is set up, or use a package, a URL, or a path there"


def _problem_of(code: WorkerCode, path: str, beside: str) -> tuple[str, str] | None:
    """Return why a path is not among the code on the workers, and what to do; None if it is."""
    if path == ".." or path.startswith("../"):
        hint = f"copy it into {code.source}, or use a package, a URL, or a path on the workers"
        return "is outside of the code's directory, and not copied to the workers", hint
    if _exists(code, path):
        return None
    if (code.source / path).exists():
        hint = f"it is empty, or git ignores it (code.include: [{path}]), or code.exclude names it"
        return "is not among the code that is copied to the workers", hint
    hint = f"correct the path, which counts from {code.source / (beside or '.')}"
    return f"does not exist: there is no {code.source / path}", hint


def _exists(code: WorkerCode, path: str) -> bool:
    return path == "." or path in code.files or any(name.startswith(f"{path}/") for name in code.files)


def _digest(facts: Mapping[str, str]) -> str:
    text = "\0".join(f"{name}\0{facts[name]}" for name in sorted(facts))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16] if facts else ""


def _is_absolute(each: _Reference) -> bool:
    return _local_path(each).startswith("/")


def _local_path(each: _Reference) -> str:
    """Return the path of a file or directory; "" for a package of an index, a URL, and what the workers' shell says."""
    name = each.name
    if name.startswith("file:"):
        name = unquote(name.removeprefix("file:").partition("#")[0])
        name = f"/{name.lstrip('/')}" if name.startswith("/") else name
    elif "://" in name or name.startswith(("~", "$")):
        return ""
    name = _EXTRAS.sub("", name.partition("#")[0].strip())
    if "${" in name or not name:
        return ""
    if each.option or name in {".", ".."} or "/" in name or _ARCHIVE.search(name):
        return name
    return ""


def _references(text: str, *, is_list: bool) -> Iterator[_Reference]:
    """Yield what may be a path in requirements.

    Args:
        text: the requirements.
        is_list: they are items of a list in YAML, among others.
    """
    lines = text.splitlines()
    for start, end, joined in _logical_lines(lines, is_list=is_list):
        content = joined.strip()
        if is_list:
            found = _ITEM.match(joined)
            if found is None:
                continue
            content = _COMMENT.sub("", found[1]).strip()
            if content[:1] in {'"', "'"} and content.endswith(content[0]):
                content = content[1:-1]
        for option, name in _values(_COMMENT.sub("", content).strip()):
            line, column = _place_of(name, option, lines, start, end)
            yield _Reference(option, name, line, column)


def _logical_lines(lines: Sequence[str], *, is_list: bool) -> Iterator[tuple[int, int, str]]:
    """Yield the lines with their first and last numbers, from 0; one that ends with a backslash goes on in the next."""
    start, joined = 0, ""
    for number, line in enumerate(lines):
        is_comment = line.lstrip().startswith("#")
        start = start if joined else number
        if line.endswith("\\") and not is_comment and not is_list:
            joined += line[:-1] + " "
            continue
        yield start, number, joined + ("" if is_comment else line)
        joined = ""
    yield start, len(lines) - 1, joined


def _values(text: str) -> Iterator[tuple[str, str]]:
    """Yield the paths and URLs of a line, each with the short name of its option. pip takes a long one's beginning."""
    if not text.startswith("-"):
        name = _NAMED.sub("", text, count=1) if _NAMED.match(text) else text
        yield "", _AFTER.sub("", name).strip().strip("'\"")
        return
    try:
        words = iter(shlex.split(text))
    except ValueError:  # a quotation mark of its own
        words = iter(text.split())
    for word in words:
        given, _, value = word.partition("=")
        if option := _SHORT.get(word[:2]):
            yield option, word[2:].removeprefix("=") or next(words, "")
        elif name := next((_LONG[each] for each in _LONG if len(given) > 3 and each.startswith(given)), ""):
            yield name, value or next(words, "")


def _place_of(name: str, option: str, lines: Sequence[str], start: int, end: int) -> tuple[int, int]:
    """Return the line and column of a path, from 1: where its text is, after its option if it has one."""
    quoted = re.escape(name).replace(r"\ ", r"\\?\ ")
    after = r"(?:-[rcefi]|--[\w-]+)[\s='\"]*" if option else r"(?:^|[\s'\"@])"
    for number in range(start, end + 1):
        for pattern in (f"{after}({quoted})(?!\\w)", f"({quoted})"):
            if found := re.search(pattern, lines[number]):
                return number + 1, found.start(1) + 1
    return start + 1, 1

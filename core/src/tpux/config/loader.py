"""From a file and arguments to a config that is right, or to all that is wrong with it at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tpux.config.document import Source, Spot, Table, Written
from tpux.config.interpolate import Interpolation
from tpux.config.override import drop_unused_tpu_keys, override
from tpux.config.resolved import Loaded
from tpux.config.secrets import masked
from tpux.config.sections import Checker
from tpux.config.select import Selector, check_workers, count_workers
from tpux.config.validate import section_words
from tpux.config.yaml import parse, read
from tpux.errors import ConfigError, Problem
from tpux.plugin.known import did_you_mean
from tpux.plugin.manager import Plugins
from tpux.plugin.sections import CommandSection, JobSection, SetupSection, TpuSection


def load(path: Path, overrides: Sequence[str], *, plugins: Plugins, environ: Mapping[str, str]) -> Loaded:
    """Read, resolve, select, validate; `tpux.config.load` has the words."""
    problems: list[Problem] = []
    warnings: list[Problem] = []
    source = read(path)
    file_root = _root(source, problems)
    root = override(file_root, overrides, section_words(plugins), problems)
    written = _interpolated(root, source, section_words(plugins), problems, warnings)
    written = drop_unused_tpu_keys(written, file_root, plugins, warnings)
    checker = Checker(path, written, plugins, environ, problems, warnings)
    core = checker.core()
    job, tpu, setup = core.get("job"), core.get("tpu"), core.get("setup")
    selection = None
    if isinstance(job, JobSection) and isinstance(tpu, TpuSection) and isinstance(setup, SetupSection):
        selection = Selector(written, plugins, problems, warnings).select(job, tpu, setup)
    sections = {**core, **checker.plugins(selection)}
    workers = None
    if isinstance(tpu, TpuSection) and "tpu" not in checker.incomplete:
        workers = count_workers(tpu, written, problems)
    command = core.get("command")
    if isinstance(job, JobSection) and isinstance(command, CommandSection):
        check_workers(job, command, workers, written, problems)
    if problems or selection is None:
        raise ConfigError(in_order(masked(problem, checker.secrets) for problem in problems))
    return Loaded(
        path=path,
        text=source.text,
        sections=sections,
        modules=selection.modules,
        environment=selection.environment,
        allocator=selection.allocator,
        workers=workers,
        secrets=checker.secrets,
        files=tuple(dict.fromkeys(checker.files)),
        warnings=tuple(in_order(warnings)),
        _trees={word: entry.tree for word, entry in written.entries.items()},
    )


def _root(source: Source, problems: list[Problem]) -> Table:
    """The config as it was written. Raises ConfigError where there is nothing to go on with."""
    tree = parse(source, problems)
    if isinstance(tree, Table):
        return tree
    if tree is not None:
        problems.append(Problem(tree.spot.place, "a config is a mapping of sections", "such as command: {cmd: ...}"))
    elif not problems:
        problems.append(Problem(source.place(0), "the config is empty", "it needs at least command: {cmd: ...}"))
    raise ConfigError(problems)


def _interpolated(
    root: Table, source: Source, words: set[str], problems: list[Problem], warnings: list[Problem]
) -> Written:
    interpolation = Interpolation(root, words, problems, warnings)
    entries = {}
    for word, entry in root.entries.items():
        if word in words:
            entries[word] = replace(entry, tree=interpolation.section(word))
        else:
            hint = did_you_mean(word, words) or f"the sections are {', '.join(sorted(words))}"
            problems.append(Problem(entry.key.place, f"there is no section {word!r}", hint))
    return Written(entries, Spot(source))


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, by line and column; those of arguments first."""
    return sorted(dict.fromkeys(problems), key=_position)


def _position(problem: Problem) -> tuple[int, int]:
    match = re.search(r":(\d+):(\d+)$", problem.where)
    return (int(match[1]), int(match[2])) if match else (0, 0)

"""Which sections of a config are looked at, and how closely."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tpux.config.document import Spot, Table, Written, holes
from tpux.config.resolved import job_words, named, render
from tpux.config.secrets import MASK
from tpux.config.select import Selection
from tpux.config.validate import DEFAULT_ALLOCATOR, OtherTpuSection, model_of, tpu_model, validate
from tpux.errors import Problem, TpuxError
from tpux.plugin import spec
from tpux.plugin.known import DIST_OF, LISTENERS
from tpux.plugin.manager import Plugins
from tpux.plugin.sections import CORE_SECTIONS, Section

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue


class Checker:
    """Validates the sections of one config.

    Attributes:
        secrets: the value of each `${env:NAME}` that was met.
        files: the files on this machine that the sections name.
        incomplete: the sections that have mistakes.
    """

    def __init__(
        self,
        path: Path,
        written: Written,
        plugins: Plugins,
        environ: Mapping[str, str],
        problems: list[Problem],
        warnings: list[Problem],
    ) -> None:
        self.secrets: dict[str, str] = {}
        self.files: list[Path] = []
        self.incomplete: set[str] = set()
        self._path = path
        self._written = written
        self._plugins = plugins
        self._environ = environ
        self._problems = problems
        self._warnings = warnings

    def core(self) -> dict[str, Section]:
        """Core's own sections, those that are valid."""
        if "command" not in self._written.entries:
            problem = Problem(self._written.start.place, "the section command is missing", "command: {cmd: ...}")
            self._problems.append(problem)
        sections = {}
        for word, model in CORE_SECTIONS.items():
            if word == "command" and word not in self._written.entries:
                continue
            data = self._data(word)
            if word == "tpu":
                model = self._tpu_model(data)  # noqa: PLW2901
            if section := self._section(word, model, data, self._written.spot(word), active=True):
                sections[word] = section
        return sections

    def _tpu_model(self, tpu: JsonValue) -> type[Section]:
        """Return the model of the allocator that the section names; of core's keys only if it has none."""
        allocator = (tpu.get("allocation_mode") if isinstance(tpu, dict) else None) or DEFAULT_ALLOCATOR
        try:
            if not isinstance(allocator, str) or not self._plugins.implements(allocator, spec.provision):
                return OtherTpuSection
        except TpuxError:  # select reports it
            return OtherTpuSection
        try:
            return tpu_model(allocator, self._plugins)
        except TpuxError as error:
            place = self._written.spot("tpu", "allocation_mode").place
            self._problems.append(Problem(place, error.message, error.hint))
            return OtherTpuSection

    def plugins(self, selection: Selection | None) -> dict[str, Section]:
        """The plugins' sections that are there or selected, those that are valid."""
        named_at = selection.named_at if selection else {}
        words = [word for word in self._written.entries if word not in CORE_SECTIONS and self._written.tree(word)]
        sections = {}
        for word in dict.fromkeys([*words, *named_at]):
            if word in self._plugins.names():
                section = self._plugin_section(word, named_at.get(word))
                if section is not None:
                    sections[word] = section
            elif word in LISTENERS and word not in named_at:
                place = self._written.spot(word).place
                message = f"nothing that is installed reads the section {word}"
                self._warnings.append(Problem(place, message, f"pip install {DIST_OF[word]}"))
        return sections

    def _plugin_section(self, word: str, named_at: Spot | None) -> Section | None:
        tree = self._written.tree(word)
        key = self._written.spot(word) if word in self._written.entries or named_at is None else named_at
        try:
            model = model_of(word, self._plugins)
            active = named_at is not None or not self._waits_to_be_selected(word)
        except TpuxError as error:
            if named_at is None:  # else it was reported where it is named
                self._warnings.append(Problem(key.place, f"this section is not checked: {error.message}", error.hint))
            return None
        if model is not None:
            return self._section(word, model, self._data(word), key, active=active)
        if tree is not None and not (isinstance(tree, Table) and not tree.entries):
            self._problems.append(Problem(key.place, f"the plugin {word} has no settings", "leave the section out"))
        return None

    def _waits_to_be_selected(self, word: str) -> bool:
        """Whether the section of a plugin does nothing by being there. A transport's serves every allocator."""
        hooks = set(self._plugins.status(word).hooks)
        chosen = {hook.__name__ for hook in (spec.check, spec.setup, spec.run, spec.provision)}
        return bool(hooks & chosen) and spec.connect.__name__ not in hooks

    def _data(self, word: str) -> JsonValue:
        """The section `word` with all that is known filled in; its secrets are collected."""
        tree = self._written.tree(word)
        data: JsonValue = {}
        if tree is not None:
            self._collect(word)
            data = render(word, tree, job_words(self._path), lambda name: self.secrets.get(name, MASK))
        return named(data, self._path) if word == "job" else data

    def _section(self, word: str, model: type[Section], data: JsonValue, key: Spot, *, active: bool) -> Section | None:
        context = {
            "directory": self._path.absolute().parent,
            "files": self.files if active else [],
            "check_files": active,
        }
        mistakes = len(self._problems)
        tree = self._written.tree(word)
        section = validate(word, model, data, tree, key=key, context=context, problems=self._problems)
        if len(self._problems) > mistakes:
            self.incomplete.add(word)
        return section

    def _collect(self, word: str) -> None:
        for hole in holes(self._written.entries[word].tree):
            if hole.kind != "env":
                continue
            if hole.name in self._environ:
                self.secrets[hole.name] = self._environ[hole.name]
            else:
                message = f"the environment variable {hole.name} is not set"
                self._problems.append(Problem(hole.place, message, f"export {hole.name}=..."))

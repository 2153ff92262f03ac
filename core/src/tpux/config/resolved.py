"""A config that was read, and what is written down of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from pydantic import ValidationError

from tpux import env
from tpux.config.document import Hole, Tree, plain
from tpux.config.secrets import MASK, placeholder, restored, stored, variable
from tpux.config.validate import model_of, tpu_model, without_nulls
from tpux.errors import Problem, TpuxError
from tpux.plugin.manager import Plugins
from tpux.plugin.sections import CORE_SECTIONS, Section

if TYPE_CHECKING:
    from tpux.plugin.machines import JsonValue


@dataclass(frozen=True)
class Loaded:
    """A config that is right.

    Attributes:
        path: its file.
        text: the file as it is, with its comments.
        sections: validated; core's five are always there, a plugin's where the config has it or selects
            the plugin. `${job.id}` is 000000 in them.
        modules: what prepares the workers, in its order, the environment among them.
        environment: what wraps the command.
        allocator: who gets the machines.
        workers: how many there will be, None where only the allocator can know.
        secrets: the value of each `${env:NAME}`, by NAME.
        files: the files on this machine that it names, to be copied beside the job.
        warnings: what may be a mistake.
    """

    path: Path
    text: str
    sections: Mapping[str, Section] = field(repr=False)  # they hold the secrets
    modules: tuple[str, ...]
    environment: str | None
    allocator: str
    workers: int | None
    secrets: Mapping[str, str] = field(repr=False)
    files: tuple[Path, ...]
    warnings: tuple[Problem, ...]
    _trees: Mapping[str, Tree] = field(repr=False)

    def resolved(self, *, id: str, user: str, files: Mapping[Path, Path] | None = None) -> dict[str, JsonValue]:  # noqa: A002
        """What is written down when a job is created, and `from_resolved` reads.

        Args:
            id: the job's id.
            user: whose it is.
            files: the copy of each of the config's files.

        Returns:
            JSON: `config` (by section, as given, the job's words filled in), `directory`, `modules`,
            `environment`, `allocator`, `files` (a file to its copy), `secrets` (their names; where their
            values belong there are placeholders).
        """
        words = job_words(self.path, id=id, user=user)
        config = {
            word: render(word, tree, words, placeholder, stored)
            for word, tree in self._trees.items()
            if word in self.sections
        }
        modules: list[JsonValue] = [*self.modules]
        secrets: list[JsonValue] = [*sorted(self.secrets)]
        return {
            "config": {**config, "job": named(config.get("job"), self.path)},
            "directory": words["config_dir"],
            "modules": modules,
            "environment": self.environment,
            "allocator": self.allocator,
            "files": {str(path): str(copy) for path, copy in (files or {}).items()},
            "secrets": secrets,
        }

    def shown(self) -> dict[str, JsonValue]:
        """The config with all of `${...}` filled in, for people: secrets are masked, `${job.id}` is 000000."""
        words = job_words(self.path)
        config = {word: render(word, tree, words, lambda _: MASK) for word, tree in self._trees.items()}
        return {"job": named(config.get("job"), self.path), **{word: config[word] for word in config if word != "job"}}


def job_words(path: Path, *, id: str = "000000", user: str = "") -> dict[str, str]:  # noqa: A002
    """What `${job.id}` and its like stand for."""
    return {"id": id, "user": user or env.user(), "name": path.stem, "config_dir": str(path.absolute().parent)}


def named(job: JsonValue, path: Path) -> JsonValue:
    """The section `job` with a name: the config's own, or the file's."""
    if job is not None and not isinstance(job, dict):
        return job
    return {**(job or {}), "name": (job or {}).get("name") or path.stem}


log = logging.getLogger(__name__)


Model = Callable[[str], type[Section] | None]


class Resolved(NamedTuple):
    """What `tpux.Job` needs of a config."""

    sections: dict[str, Section]
    modules: tuple[str, ...]
    environment: str | None
    allocator: str


def from_resolved(data: Mapping[str, JsonValue], *, plugins: Plugins, secrets: Mapping[str, str]) -> Resolved:
    """The sections of what `Loaded.resolved` gave; `tpux.config.from_resolved` has the words."""
    config = cast("dict[str, JsonValue]", data["config"])
    modules = tuple(cast("list[str]", data["modules"]))
    environment = cast("str | None", data["environment"])
    allocator = cast("str", data["allocator"])
    copies = cast("dict[str, str]", data["files"])
    context = {
        "directory": Path(cast("str", data["directory"])),
        "check_files": False,
        "copies": {Path(path): Path(copy) for path, copy in copies.items()},
    }

    def model(word: str) -> type[Section] | None:
        return tpu_model(allocator, plugins) if word == "tpu" else model_of(word, plugins)

    needed = {*CORE_SECTIONS, *modules, allocator}
    sections: dict[str, Section] = {}
    for word in dict.fromkeys([*CORE_SECTIONS, *config, *modules, allocator]):
        read = _section if word in needed else _section_if_it_fits
        if section := read(word, config.get(word), model, secrets, context):
            sections[word] = section
    return Resolved(sections, modules, environment, allocator)


def _section_if_it_fits(
    word: str, data: JsonValue, model: Model, secrets: Mapping[str, str], context: Mapping[str, object]
) -> Section | None:
    """A section that the job can do without: its plugin may be gone since."""
    try:
        return _section(word, data, model, secrets, context)
    except TpuxError as error:
        log.warning("the section %s is left out: %s", word, error)
        return None


def _section(
    word: str, data: JsonValue, model_for: Model, secrets: Mapping[str, str], context: Mapping[str, object]
) -> Section | None:
    model = model_for(word)
    if model is None:
        return None
    filled = data if word == "command" else restored(data, secrets)  # a command reads its secrets as variables
    try:
        return model.model_validate(without_nulls(model, filled), context=dict(context))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        message = f"the section {word} of this job no longer fits its plugin: {'; '.join(faults)}"
        raise TpuxError(message, hint="tpux or the plugin was changed since: create the job again") from error


def render(
    word: str, tree: Tree, words: Mapping[str, str], secret: Callable[[str], str], literal: Callable[[str], str] = str
) -> JsonValue:
    """The section `word` as JSON.

    Args:
        word: the section's name. In `command` a secret becomes the shell variable that core exports, so
            that no value is pasted into a script.
        tree: its content.
        words: the job's words.
        secret: what stands for the secret of that name in other sections.
        literal: what becomes of all other text in other sections.
    """
    if word == "command":
        return plain(tree, lambda hole: words[hole.name] if hole.kind == "job" else variable(hole.name))

    def fill(hole: Hole) -> str:
        return literal(words[hole.name]) if hole.kind == "job" else secret(hole.name)

    return plain(tree, fill, literal)

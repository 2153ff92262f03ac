"""A config that was read, and what is written down of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tpux import env
from tpux.config.render import MASK, placeholder, render, stored
from tpux.config.tree import Tree
from tpux.errors import Problem

if TYPE_CHECKING:
    from tpux.machines import JsonValue
    from tpux.sections import Section


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

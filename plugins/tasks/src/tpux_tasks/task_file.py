"""The file of tasks: its keys, what a task inherits, and the order in which tasks need each other."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from tpux import UsageError
from tpux.fields import read_data_file

_ID = r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,79}$"
Id = Annotated[str, Field(pattern=_ID)]
_Location = tuple[str | int, ...]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _Keys(BaseModel):
    """What a task may say, and an accelerator or `defaults` for all of theirs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Annotated[str, Field(min_length=1)] | None = None
    repo: Annotated[str, Field(min_length=1)] | None = None
    branch: Annotated[str, Field(min_length=1)] | None = None
    workdir: Annotated[str, Field(min_length=1)] | None = None
    env: Annotated[str, Field(min_length=1)] | dict[str, str | int | float | bool] | None = None
    zone: Annotated[str, Field(min_length=1)] | None = None
    max_jobs: Annotated[int, Field(ge=1)] | None = None
    max_retries: Annotated[int, Field(ge=0)] | None = None
    workers: Annotated[int, Field(ge=0)] | list[Annotated[int, Field(ge=0)]] | Literal["all"] | None = None


class _Task(_Keys):
    id: Id
    run: Annotated[str, Field(min_length=1)]
    depends_on: Annotated[list[str], BeforeValidator(_as_list)] = Field(default_factory=list)


class _Accelerator(_Keys):
    tasks: list[_Task]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Id | None = None
    config: Annotated[str, Field(min_length=1)] | None = None
    repos: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    defaults: _Keys = _Keys()
    accelerators: dict[str, _Accelerator] = Field(min_length=1)

    def locations(self) -> Iterator[tuple[_Location, _Accelerator, _Task]]:
        """Yield the tasks in the order of the file, each with its position and its accelerator."""
        for kind, accelerator in self.accelerators.items():
            for index, task in enumerate(accelerator.tasks):
                yield ("accelerators", kind, "tasks", index), accelerator, task

    @classmethod
    def model_validate(cls, obj: object, **options: object) -> Self:
        """Validate the file, and what its tasks say about each other: an error has the position of the one key.

        Raises:
            ValidationError: it is not valid.
        """
        made = super().model_validate(obj, **options)  # type: ignore[arg-type]
        problems = [*made.problems()]
        if problems:
            details = [
                InitErrorDetails(
                    type=PydanticCustomError("value_error", "{reason}", {"reason": text}), loc=at, input=""
                )
                for at, text in problems
            ]
            raise ValidationError.from_exception_data(cls.__name__, details)
        return made

    def problems(self) -> Iterator[tuple[_Location, str]]:
        """Yield what contradicts itself in the tasks, each with the position of its key."""
        seen = dict[str, _Location]()
        for at, accelerator, task in self.locations():
            if task.id in seen:
                yield (*at, "id"), f"there is a task {task.id} already: each has an id of its own"
            seen.setdefault(task.id, at)
            if self.config is None and all(each.config is None for each in (task, accelerator, self.defaults)):
                yield at, "the task has no config: set `config: train.yaml` at the top of the file, or in defaults"
        for at, accelerator, task in self.locations():
            for index, other in enumerate(task.depends_on):
                if other not in seen:
                    yield (*at, "depends_on", index), f"there is no task {other!r} in this file"
            for place, keys in ((at, task), (at[:2], accelerator), (("defaults",), self.defaults)):
                if keys.repo is not None and keys.repo not in self.repos and not re.search("[/:]", keys.repo):
                    yield (*place, "repo"), f"{keys.repo!r} is neither in repos nor a URL"
        yield from self._cycles(seen)

    def _cycles(self, known: Mapping[str, _Location]) -> Iterator[tuple[_Location, str]]:
        needs = {task.id: [one for one in task.depends_on if one in known] for _, _, task in self.locations()}
        done = set[str]()
        for start in needs:
            path, stack = list[str](), [(start, iter(needs[start]))] if start not in done else []
            while stack:
                current, rest = stack[-1]
                if not path or path[-1] != current:
                    path.append(current)
                following = next(rest, None)
                if following is None:
                    done.add(current)
                    path.pop()
                    stack.pop()
                elif following in path:
                    circle = [*path[path.index(following) :], following]
                    index = next(
                        task.depends_on.index(following) for _, _, task in self.locations() if task.id == current
                    )
                    yield (*known[current], "depends_on", index), f"a cycle: {' needs '.join(circle)}"
                    done.update(path)
                    return
                elif following not in done:
                    stack.append((following, iter(needs[following])))


@dataclass(frozen=True)
class Task:
    """A task with all that it inherits.

    Attributes:
        id: its name in the file.
        config: the path of the config of its job.
        needs: the tasks that must have succeeded before.
        group: the name of the group of jobs of its accelerator.
        max_jobs: how many of the group run at once.
        words: what its job has beside, as on the command line; without its tags, its group and the jobs it waits for.
    """

    id: str
    config: Path
    needs: tuple[str, ...]
    group: str
    max_jobs: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class TaskFile:
    """A file of tasks.

    Attributes:
        name: selects its jobs; the tag `tasks=NAME`.
        tasks: those of the file, each after the ones that it needs.
    """

    name: str
    tasks: tuple[Task, ...]

    def task(self, name: str) -> Task:
        """Return a task by its id.

        Raises:
            UsageError: the file has none.
        """
        for task in self.tasks:
            if task.id == name:
                return task
        raise UsageError(f"there is no task {name!r}", hint=f"the file has: {', '.join(one.id for one in self.tasks)}")


def read(path: Path) -> TaskFile:
    """Read a file of tasks.

    Raises:
        ConfigError: it cannot be read or is not valid; has all errors with their positions.
    """
    found = read_data_file(path, _File)
    here = path.resolve().parent
    name = found.name or re.sub(r"[^-A-Za-z0-9_.]+", "-", f"{here.name}-{path.stem}").lstrip("-_.")[:60]
    made = {
        task.id: _make(found, here, name, str(at[1]), accelerator, task) for at, accelerator, task in found.locations()
    }
    return TaskFile(name, tuple(_in_order(made)))


def _make(found: _File, here: Path, name: str, kind: str, accelerator: _Accelerator, task: _Task) -> Task:
    levels: Sequence[_Keys] = (found.defaults, accelerator, task)
    given: dict[str, object] = {}
    for level in levels:
        given.update({key: value for key in _Keys.model_fields if (value := getattr(level, key)) is not None})
    variables = {key: text for level in levels if isinstance(level.env, dict) for key, text in level.env.items()}
    words = [
        f"tpu.accelerator={json.dumps(kind)}",
        f"command.cmd={json.dumps(_script(task.run, given.get('workdir')))}",
    ]
    words += [f"command.env.{key}={json.dumps(_as_text(value))}" for key, value in variables.items()]
    if names := [level.env for level in levels if isinstance(level.env, str)]:
        words += ["job.env_type=conda", f"conda.name={json.dumps(names[-1])}"]
    if "repo" in given:
        words.append(f"code.repo={json.dumps(found.repos.get(str(given['repo']), str(given['repo'])))}")
    keys = {
        "branch": "code.branch",
        "zone": "tpu.zone",
        "max_retries": "job.max_restarts.program",
        "workers": "command.workers",
    }
    words += [f"{word}={json.dumps(given[key])}" for key, word in keys.items() if key in given]
    group = f"{name}-{re.sub(r'[^-A-Za-z0-9_.]+', '-', kind)}"[:100]
    config = here / Path(str(given.get("config", found.config))).expanduser()
    limit = given.get("max_jobs", 1)
    return Task(task.id, config, tuple(task.depends_on), group, limit if isinstance(limit, int) else 1, tuple(words))


def _script(run: str, directory: object) -> str:
    """Return the script of a task, which begins in its directory on the worker."""
    if not isinstance(directory, str):
        return run
    home, rest = ('"$HOME"/', directory[2:]) if directory.startswith("~/") else ("", directory)
    return f"cd -- {home}{shlex.quote(rest)} || exit 1\n{run}"


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_order(tasks: Mapping[str, Task]) -> Iterator[Task]:
    """Yield the tasks in the order of the file, each after the ones that it needs; there are no cycles."""
    done = set[str]()
    waiting = [*tasks.values()]
    while waiting:
        ready = next(task for task in waiting if done.issuperset(task.needs))
        waiting.remove(ready)
        done.add(ready.id)
        yield ready

"""The config section `code`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tpux import Job, Section
from tpux.fields import Size
from tpux_worker_tools.requirements import WorkerCode

if TYPE_CHECKING:
    from tpux import JsonValue

# git takes an argument that begins with a dash for an option.
_REF, _REPO, _COMMIT = re.compile(r"[^-\s][^\s:]*"), re.compile(r"[^-\s]\S*"), re.compile("[0-9a-fA-F]{7,64}")


def _ref(value: object) -> object:
    if isinstance(value, str) and not _REF.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a branch or tag")
    return value


def _repository(value: object) -> object:
    """Require a URL or a path; a message does not repeat it, since it may contain a password."""
    if isinstance(value, str) and not _REPO.fullmatch(value):
        raise ValueError("the URL or path of a repository has no spaces, and does not begin with a dash")
    try:
        urlsplit(value if isinstance(value, str) else "")
    except ValueError as error:  # whose message may repeat it
        raise ValueError("the repository has no valid URL") from error
    return value


def _pattern(value: str) -> str:
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([value])
    except ValueError as error:
        raise ValueError(f"{value!r} is not a pattern of .gitignore") from error
    return value


def _commit(value: object) -> object:
    if isinstance(value, str) and not _COMMIT.fullmatch(value):
        raise ValueError(f"{value!r} is not a commit: write 7 or more hexadecimal digits; for others: branch or tag")
    return value


def expand_user(path: str) -> Path:
    """Return a path with the home directory in place of `~`; that of a user who does not exist is left as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  (`Path.expanduser` raises an error there)


def _directory(value: str, info: ValidationInfo) -> str:
    """Require a directory that exists, in the shell in which the user typed the path."""
    current = (info.context or {}).get("current_directory")
    if info.context and info.context.get("check_files") and isinstance(current, Path):
        directory = current / expand_user(value)
        if not directory.is_dir():
            problem = f"{directory} is not a directory" if directory.exists() else f"there is no directory {directory}"
            raise ValueError(f"{problem}; a relative path starts where the command is typed")
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
Ref = Annotated[str, BeforeValidator(_ref), Field(pattern=f"^{_REF.pattern}$")]


class CodeSection(Section):
    """The code that the command runs: a directory on this machine, or a git repository. A text is the directory."""

    dir: Annotated[str, Field(min_length=1), AfterValidator(_directory)] | None = None
    """A directory on this machine; a relative path starts where the command was typed."""
    include: list[Pattern] = Field(default_factory=list)
    """Files that git ignores and that are copied all the same; patterns as in .gitignore."""
    exclude: list[Pattern] = Field(default_factory=list)
    """Files that are not copied; patterns as in .gitignore."""
    max_size: Size = 500_000_000
    """The total size of the files above which the job is not created, such as 500MB."""
    repo: Annotated[str, BeforeValidator(_repository), Field(pattern=f"^{_REPO.pattern}$")] | None = None
    """The URL of a git repository, in place of a directory; a relative path starts where the command was typed."""
    branch: Ref | None = None
    """The branch of the repository; by default its default branch."""
    tag: Ref | None = None
    """A tag of the repository, in place of a branch."""
    commit: Annotated[str, BeforeValidator(_commit), Field(pattern=f"^{_COMMIT.pattern}$")] | None = None
    """A commit of the repository, in place of a branch."""
    pr: Annotated[int, Field(gt=0)] | None = None
    """The number of a pull request on GitHub, in place of a branch."""

    @model_validator(mode="before")
    @classmethod
    def _text_is_directory(cls, data: object) -> object:
        return {"dir": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_source(self) -> CodeSection:
        if self.dir is not None and self.repo is not None:
            raise ValueError("dir and repo exclude each other: set only one of them")
        if self.dir is None and self.repo is None:
            raise ValueError('the code is missing: set dir (for example "code: .") or repo')
        given = [name for name in ("branch", "tag", "commit", "pr") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: set only one of them")
        if given and self.repo is None:
            raise ValueError(f"{given[0]} needs repo: a directory is copied as it is")
        return self

    def uses_peers(self) -> bool:
        """Return True: one worker gets code that is large, and the others copy it."""
        return True

    def on_workers(self, job: Job) -> WorkerCode | None:
        """Return the job's snapshot as its workers have it; None for a repository, which has no directory here."""
        from tpux_code.snapshots import Snapshots
        from tpux_code.worker import directory

        answer = job.resolved.get("code")
        if answer is None or "repo" in answer:
            return None
        files = Snapshots().contents(str(answer["snapshot"]))
        return WorkerCode(directory(job), Path(str(answer["directory"])), files)

    def changed_sources(self, resolved: Mapping[str, JsonValue]) -> list[str]:
        """Return the files that differ from those of the job's snapshot, or the new commit of a branch."""
        from tpux_code.changes import changed_files, new_commit

        if "repo" not in resolved:
            return changed_files(resolved, self.include, self.exclude)
        # A revision that `tpux sync` has chosen stays, and commits cannot move.
        moves = self.repo is not None and self.commit is None and self.pr is None
        return new_commit(resolved) if moves else []

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema, in which a text stands for `dir`."""
        made = handler.resolve_ref_schema(handler(schema))
        made["type"] = ["object", "string"]
        return made

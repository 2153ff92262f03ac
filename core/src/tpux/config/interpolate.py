"""`${...}`: references to the config itself, variables of the job, and the environment."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from tpux.config.document import MappingNode, Node, Placeholder, ScalarNode, SequenceNode, Source, Span, Template
from tpux.errors import Problem
from tpux.plugin.catalog import closest, did_you_mean

_Path = tuple[str, ...]
_MAX_DEPTH = 50

JOB_VARIABLES = ("id", "user", "name", "config_dir")
"""Variables `${job.NAME}` that are known when a job is created."""
ATTEMPT_VARIABLES = ("attempt", "stage", "output_dir", "previous_output_dir")
"""Variables `${job.NAME}` that are set for each attempt; only `command` and `job.environment` may use them."""

_AT_CREATE = {f"job.{name}" for name in JOB_VARIABLES}
_AT_ATTEMPT = {f"job.{name}" for name in ATTEMPT_VARIABLES}
_JOB_NAME = ("job", "name")  # as `tpux list` shows it, with the suffix of `job.worker_num`
_TPU_NAME = "tpu.name"  # the name of the allocated TPU, which may have the job's id as a suffix
_PATH = r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*"
_ENV = r"env:[A-Za-z_]\w*"
_OUTSIDE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
# Outside quotes a shell reads `\x` and `$$` as one token each, so a `${` that begins inside one is not a reference.
_IN_COMMAND = re.compile(rf"\\.|\$\$|\$\{{({_ENV}|{_PATH})\}}", re.DOTALL)


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replace the attempt's variables in a string of `command` or `job.environment`, by the same rules as at create.

    Args:
        text: the string.
        values: the value of each, such as `{"job.attempt": "2"}`; all other references are kept.
    """
    return _IN_COMMAND.sub(lambda token: values.get(token[1] or "", token[0]), text)


class _ReferenceError(Exception):
    def __init__(self, location: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(location, message, hint)


class _UnknownVariableError(_ReferenceError):
    pass


class Interpolation:
    """Resolves the references of a config; appends errors to `problems`.

    Args:
        root: the config.
        sections: the names of all sections, whether the config has them or not.
        problems: receives errors.
        warnings: receives what may be an error or meant for the shell.
    """

    def __init__(
        self, root: MappingNode, sections: Collection[str], problems: list[Problem], warnings: list[Problem]
    ) -> None:
        self._root = root
        self._sections = {*sections, *root.entries}
        self._problems = problems
        self._warnings = warnings
        self._resolving: list[_Path] = []
        self._for_program = False  # in job.environment, which each attempt reads like the section command

    def section(self, name: str) -> Node:
        """Return the section with its references resolved; only placeholders remain."""
        node = self._root.entries[name].value
        if name != "job" or not isinstance(node, MappingNode):
            return self._resolve(node, in_command=name == "command")
        entries = {}
        for key, entry in node.entries.items():
            self._for_program = key == "environment"
            entries[key] = replace(entry, value=self._resolve(entry.value, in_command=False))
        self._for_program = False
        return replace(node, entries=entries)

    def _resolve(self, node: Node, *, in_command: bool) -> Node:
        if isinstance(node, MappingNode):
            entries = {
                key: replace(entry, value=self._resolve(entry.value, in_command=in_command))
                for key, entry in node.entries.items()
            }
            return replace(node, entries=entries)
        if isinstance(node, SequenceNode):
            return replace(node, items=tuple(self._resolve(item, in_command=in_command) for item in node.items))
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            return self._resolve_string(node, node.value, in_command=in_command)
        except _ReferenceError as error:
            if self._resolving:
                raise
            _report(self._problems, error)
            return node

    def _resolve_string(self, scalar: ScalarNode, text: str, *, in_command: bool) -> Node:
        parts: list[str | Placeholder] = []
        seen: dict[str, int] = {}
        end = 0
        for token in (_IN_COMMAND if in_command else _OUTSIDE).finditer(text):
            nth = seen[token[0]] = seen.get(token[0], -1) + 1
            location = scalar.span.location_of(token[0], nth)
            found = self._resolve_in_command(token, location) if in_command else self._resolve_token(token, location)
            if not isinstance(found, str) and token[0] == text:
                return replace(found, span=scalar.span)
            parts += [text[end : token.start()], *self._parts(found, token[0], location)]
            end = token.end()
        parts.append(text[end:])
        unresolved = any(isinstance(part, Placeholder) for part in parts)
        value = Template(tuple(part for part in parts if part)) if unresolved else "".join(map(str, parts))
        return replace(scalar, value=value)

    def _resolve_token(self, token: re.Match[str], location: str) -> str | Node:
        if token[0] == "$${":
            return "${"
        name = token[1]
        if name is not None and re.fullmatch(_ENV, name):
            return _placeholder("env", name.removeprefix("env:"), location)
        if name is None or not re.fullmatch(_PATH, name):
            hint = "use ${section.key} or ${env:NAME}; $${ is a literal ${"
            raise _ReferenceError(location, f"invalid reference {token[0]}", hint)
        if self._for_program and name in {*_AT_ATTEMPT, _TPU_NAME}:
            return token[0]
        if name in _AT_ATTEMPT:
            message = f"{token[0]} is not known before an attempt starts"
            raise _ReferenceError(location, message, "use it in the section command, or in job.environment")
        return self._look_up(_split(name), token[0], location)

    def _resolve_in_command(self, token: re.Match[str], location: str) -> str | Node:
        """Resolve a reference in the section `command`: what is not a path of the config is left to the shell."""
        name = token[1]
        if name is None:
            return token[0]
        if name.startswith("env:"):
            return _placeholder("env", name.removeprefix("env:"), location)
        if "." not in name or name in {*_AT_ATTEMPT, _TPU_NAME} or _split(name)[0] not in self._sections:
            return token[0]
        try:
            return self._look_up(_split(name), token[0], location)
        except _UnknownVariableError as error:
            if error.problem.where != location or name.startswith("job."):
                raise  # it is about a reference in the value, or a misspelled variable: no shell accepts its name
            _report(self._warnings, error)
            return token[0]

    def _look_up(self, path: _Path, token: str, location: str) -> Node:
        if path in self._resolving:
            circle = " → ".join(".".join(each) for each in [*self._resolving[self._resolving.index(path) :], path])
            raise _ReferenceError(location, f"circular reference {token}: {circle}")
        if len(self._resolving) == _MAX_DEPTH:
            raise _ReferenceError(location, f"{token} follows more than {_MAX_DEPTH} references")
        self._resolving.append(path)
        try:
            node = self._follow(path)
            is_set = node is not None and not (isinstance(node, ScalarNode) and node.value in {None, ""})
            if not is_set and ".".join(path) in _AT_CREATE:
                found: Node = _placeholder("job", path[1], location)
            elif node is None:
                raise _UnknownVariableError(location, f"unknown variable {token}", self._suggest(path))
            else:
                found = self._resolve(node, in_command=path[0] == "command")
            return self._numbered(found, token, location) if path == _JOB_NAME else found
        finally:
            self._resolving.pop()

    def _numbered(self, name: Node, token: str, location: str) -> Node:
        """Return the job's name with the suffix that `job.worker_num` gives it (`JobSection.numbered`)."""
        found = self._follow(("job", "worker_num"))
        number = None if found is None else self._resolve(found, in_command=False)
        if not isinstance(number, ScalarNode) or number.value in (None, "auto"):
            return name
        suffix = number.value.parts if isinstance(number.value, Template) else (str(number.value),)
        parts = (*self._parts(name, token, location), "-", *suffix)
        unresolved = any(isinstance(part, Placeholder) for part in parts)
        return ScalarNode(Span(Source("", "")), Template(parts) if unresolved else "".join(map(str, parts)), "")

    def _follow(self, path: _Path) -> Node | None:
        node: Node = self._root
        for step in path:
            if isinstance(node, ScalarNode) and isinstance(node.value, str):
                node = self._resolve(node, in_command=path[0] == "command")  # it may be a reference itself
            if isinstance(node, MappingNode) and step in node.entries:
                node = node.entries[step].value
            elif isinstance(node, SequenceNode) and step.isdecimal() and int(step) < len(node.items):
                node = node.items[int(step)]
            else:
                return None
        return node

    def _suggest(self, path: _Path) -> str:
        parent = self._follow(path[:-1])
        if isinstance(parent, SequenceNode):
            return f"{'.'.join(path[:-1])} has {len(parent.items)} items, numbered from 0"
        choices = list(parent.entries) if isinstance(parent, MappingNode) else []
        if path[:-1] == ("job",):
            choices += [*JOB_VARIABLES, *ATTEMPT_VARIABLES]
        near = closest(path[-1], choices)
        if near is not None:
            return f"did you mean ${{{'.'.join((*path[:-1], near))}}}?"
        return did_you_mean(path[0], self._sections) if path[0] not in self._sections else ""

    def _parts(self, found: str | Node, token: str, location: str) -> tuple[str | Placeholder, ...]:
        """Return what a reference contributes to a longer string."""
        if isinstance(found, str):
            return (found,)
        if not isinstance(found, ScalarNode):
            kind = "a list" if isinstance(found, SequenceNode) else "a mapping"
            message = f"{token} is {kind} and cannot be part of a string"
            raise _ReferenceError(location, message, "refer to one of its values")
        if isinstance(found.value, Template):
            return found.value.parts
        if found.value is None:
            raise _ReferenceError(location, f"{token} is null")
        return (found.value if isinstance(found.value, str) else found.raw,)


def _report(problems: list[Problem], error: _ReferenceError) -> None:
    if error.problem not in problems:  # report each error once, not again at every reference to it
        problems.append(error.problem)


def _placeholder(kind: Literal["env", "job"], name: str, location: str) -> ScalarNode:
    return ScalarNode(Span(Source("", "")), Template((Placeholder(kind, name, location),)), "")


def _split(path: str) -> _Path:
    return tuple(re.findall(r"[\w-]+", path))  # `a[0]` and `a.0` are the same

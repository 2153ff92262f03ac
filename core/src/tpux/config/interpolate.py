"""`${...}`: what a config takes from itself, from the job and from the environment."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from tpux.config.document import Hole, Items, Scalar, Source, Spot, Table, Text, Tree
from tpux.errors import Problem
from tpux.plugin.known import closest, did_you_mean

_Steps = tuple[str, ...]
_DEEPEST = 50


class _Mistake(Exception):  # noqa: N818  (never leaves this file)
    def __init__(self, place: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(place, message, hint)


class _NowhereError(_Mistake):
    pass


class Interpolation:
    """Resolves what `${...}` stands for, all through a config; mistakes are added to `problems`.

    Args:
        root: the config.
        sections: the words that are sections, whether the config has them or not.
        problems: takes the mistakes.
        warnings: takes what may be a mistake and may be meant for the shell.
    """

    def __init__(
        self, root: Table, sections: Collection[str], problems: list[Problem], warnings: list[Problem]
    ) -> None:
        self._root = root
        self._sections = {*sections, *root.entries}
        self._problems = problems
        self._warnings = warnings
        self._looking_up: list[_Steps] = []

    def section(self, word: str) -> Tree:
        """The section `word`, with nothing left in it but holes."""
        return self._tree(self._root.entries[word].tree, in_command=word == "command")

    def _tree(self, tree: Tree, *, in_command: bool) -> Tree:
        if isinstance(tree, Table):
            entries = {
                key: replace(entry, tree=self._tree(entry.tree, in_command=in_command))
                for key, entry in tree.entries.items()
            }
            return replace(tree, entries=entries)
        if isinstance(tree, Items):
            return replace(tree, items=tuple(self._tree(item, in_command=in_command) for item in tree.items))
        if not isinstance(tree.value, str) or "${" not in tree.value:
            return tree
        try:
            return self._text(tree, tree.value, in_command=in_command)
        except _Mistake as mistake:
            if self._looking_up:
                raise
            _report(self._problems, mistake)
            return tree

    def _text(self, scalar: Scalar, text: str, *, in_command: bool) -> Tree:
        parts: list[str | Hole] = []
        seen: dict[str, int] = {}
        end = 0
        for token in (IN_COMMAND if in_command else OUTSIDE).finditer(text):
            nth = seen[token[0]] = seen.get(token[0], -1) + 1
            place = scalar.spot.place_of(token[0], nth)
            found = self._command_token(token, place) if in_command else self._token(token, place)
            if not isinstance(found, str) and token[0] == text:
                return replace(found, spot=scalar.spot)
            parts += [text[end : token.start()], *self._parts(found, token[0], place)]
            end = token.end()
        parts.append(text[end:])
        holes = any(isinstance(part, Hole) for part in parts)
        value = Text(tuple(part for part in parts if part)) if holes else "".join(map(str, parts))
        return replace(scalar, value=value)

    def _token(self, token: re.Match[str], place: str) -> str | Tree:
        if token[0] == "$${":
            return "${"
        word = token[1]
        if word is not None and re.fullmatch(ENV, word):
            return _hole("env", word.removeprefix("env:"), place)
        if word is None or not re.fullmatch(PATH, word):
            hint = "${section.key} and ${env:NAME} are known here; $${ stands for ${ itself"
            raise _Mistake(place, f"{token[0]} names nothing", hint)
        if word in LATE:
            message = f"{token[0]} is known only when an attempt starts"
            raise _Mistake(place, message, "use it in the section command")
        return self._look_up(_steps(word), token[0], place)

    def _command_token(self, token: re.Match[str], place: str) -> str | Tree:
        """Whatever is no path of the config is the shell's, and stays as it is."""
        word = token[1]
        if word is None:
            return token[0]
        if word.startswith("env:"):
            return _hole("env", word.removeprefix("env:"), place)
        if "." not in word or word in LATE or _steps(word)[0] not in self._sections:
            return token[0]
        try:
            return self._look_up(_steps(word), token[0], place)
        except _NowhereError as mistake:
            if mistake.problem.where != place:
                raise  # it is about what the path leads to
            _report(self._warnings, mistake)
            return token[0]

    def _look_up(self, path: _Steps, token: str, place: str) -> Tree:
        if path in self._looking_up:
            circle = " → ".join(".".join(steps) for steps in [*self._looking_up[self._looking_up.index(path) :], path])
            raise _Mistake(place, f"{token} goes in a circle: {circle}")
        if len(self._looking_up) == _DEEPEST:
            raise _Mistake(place, f"{token} leads through more than {_DEEPEST} references")
        self._looking_up.append(path)
        try:
            tree = self._follow(path)
            given = isinstance(tree, Items | Table) or (isinstance(tree, Scalar) and tree.value not in {None, ""})
            if not given and ".".join(path) in AT_CREATE:
                return _hole("job", path[1], place)
            if tree is None:
                raise _NowhereError(place, f"{token} leads nowhere", self._meant(path))
            return self._tree(tree, in_command=path[0] == "command")
        finally:
            self._looking_up.pop()

    def _follow(self, path: _Steps) -> Tree | None:
        tree: Tree = self._root
        for step in path:
            if isinstance(tree, Scalar) and isinstance(tree.value, str):
                tree = self._tree(tree, in_command=path[0] == "command")  # it may be a reference itself
            if isinstance(tree, Table) and step in tree.entries:
                tree = tree.entries[step].tree
            elif isinstance(tree, Items) and step.isdecimal() and int(step) < len(tree.items):
                tree = tree.items[int(step)]
            else:
                return None
        return tree

    def _meant(self, path: _Steps) -> str:
        parent = self._follow(path[:-1])
        if isinstance(parent, Items):
            return f"{'.'.join(path[:-1])} has {len(parent.items)} items, counted from 0"
        choices = list(parent.entries) if isinstance(parent, Table) else []
        if path[:-1] == ("job",):
            choices += [*JOB_WORDS, *LATE_WORDS]
        near = closest(path[-1], choices)
        if near is not None:
            return f"did you mean ${{{'.'.join((*path[:-1], near))}}}?"
        return did_you_mean(path[0], self._sections) if path[0] not in self._sections else ""

    def _parts(self, found: str | Tree, token: str, place: str) -> tuple[str | Hole, ...]:
        """What a token gives inside a longer text."""
        if isinstance(found, str):
            return (found,)
        if not isinstance(found, Scalar):
            kind = "a list" if isinstance(found, Items) else "a mapping"
            raise _Mistake(place, f"{token} is {kind}, and cannot stand inside a text", "name one value of it")
        if isinstance(found.value, Text):
            return found.value.parts
        if found.value is None:
            raise _Mistake(place, f"{token} has no value")
        return (found.value if isinstance(found.value, str) else found.written,)


def _report(to: list[Problem], mistake: _Mistake) -> None:
    if mistake.problem not in to:  # what refers to a mistake is none of its own
        to.append(mistake.problem)


def _hole(kind: Literal["env", "job"], name: str, place: str) -> Scalar:
    return Scalar(Spot(Source("", "")), Text((Hole(kind, name, place),)), "")


def _steps(word: str) -> _Steps:
    return tuple(re.findall(r"[\w-]+", word))  # `a[0]` and `a.0` are the same


JOB_WORDS = ("id", "user", "name", "config_dir")
"""Words of `${job.word}` that are known when a job is created."""
LATE_WORDS = ("attempt", "stage", "output_dir", "previous_output_dir")
"""Words of `${job.word}` that each attempt fills in; only the section `command` may use them."""

AT_CREATE = {f"job.{word}" for word in JOB_WORDS}
LATE = {f"job.{word}" for word in LATE_WORDS}
PATH = r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*"
ENV = r"env:[A-Za-z_]\w*"
OUTSIDE = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
# Outside of quotes a shell reads `\x` and `$$` as one thing each: a `${` that begins inside one is none.
IN_COMMAND = re.compile(rf"\\.|\$\$|\$\{{({ENV}|{PATH})\}}", re.DOTALL)


def fill(text: str, words: Mapping[str, str]) -> str:
    """A text of the section `command` with the late words filled in, by the same rules as at create.

    Args:
        text: the text.
        words: the value of each, such as `{"job.attempt": "2"}`; what is not in it stays as it is.
    """
    return IN_COMMAND.sub(lambda token: words.get(token[1] or "", token[0]), text)

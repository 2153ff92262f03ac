"""Validation of what hooks return, against the return annotations of `spec.py` and of the contract's dataclasses."""

from __future__ import annotations

import errno
import functools
import math
import reprlib
import stat
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from inspect import isclass
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Literal, Union, get_args, get_origin, get_type_hints

from tpux.model.failures import Action, Failure
from tpux.model.host import Host
from tpux.model.job import Command
from tpux.model.machines import Allocation, MachineStatus, Waiting
from tpux.model.steps import Put, Sh
from tpux.model.values import VARIABLE_NAME

if TYPE_CHECKING:
    from typing import TypeAlias

Hook: TypeAlias = "Callable[..., object]"
Type: TypeAlias = object
"""A class or a typing construct, such as `list[Finding]`."""


def problem_of(hook: Hook, answer: object) -> str:
    """Return what is wrong with a hook's answer, "" if it is valid.

    Steps are checked as they are yielded; the return value of a hook without an answer is ignored.

    Args:
        hook: the hook's specification, or a method of `Host`.
        answer: what a plugin returned.
    """
    expected = _return_type(hook)
    return "" if expected in (None, NoneType) else _problem(answer, expected, "")


def problem_of_read(pieces: Sequence[tuple[str, int]], answer: object) -> str:
    """Return what is wrong with the answer of `Host.read`, "" if it is valid.

    Args:
        pieces: what was to be read.
        answer: what a transport's connection returned.
    """
    if isinstance(answer, list) and len(answer) == len(pieces) and {*map(type, answer)} <= {bytes, NoneType}:
        return ""  # as each poll of a program is answered: without the types in general
    if problem := problem_of(Host.read, answer):
        return problem
    count = len(answer) if isinstance(answer, list) else 0
    return "" if count == len(pieces) else f"expected an item for each of {len(pieces)} files, got {count}"


def problem_of_output(piece: object) -> str:
    """Return what is wrong with output that `Host.follow` passes on, "" if it is bytes."""
    return _problem(piece, bytes, "a piece of output")


def problem_of_step(hook: Hook, step: object) -> str:
    """Return what is wrong with a value that a generator hook yielded, "" if it is a step."""
    return _problem(step, _generator_args(hook)[0], "step")


def problem_of_result(hook: Hook, result: object) -> str:
    """Return what is wrong with the value that a generator hook returned at its end, "" if it is valid."""
    return _problem(result, _generator_args(hook)[2], "the value returned after the steps")


def _generator_args(hook: Hook) -> tuple[Type, ...]:
    """Return the types of what a generator hook yields, is sent and returns; `solve` may return None instead."""
    expected = _return_type(hook)
    alternatives = (expected,) if get_origin(expected) is Generator else get_args(expected)
    return next(get_args(one) for one in alternatives if get_origin(one) is Generator)


_TRANSIENT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.EINTR, errno.EAGAIN}
"""Errors of this machine that are no plugin's: copying the file raises them again, and is tried again."""


class _Json:
    """Stands for `JsonValue` in annotations: a recursive union of forward references is hard to inspect."""


class _Argument:
    """Stands for `str` in what a worker is given: bytes that are not UTF-8 pass through it, as surrogates."""


_JSON: dict[str, object] = {"JsonValue": _Json, "SavedState": Mapping[str, _Json]}


@functools.cache
def _return_type(hook: Hook) -> Type:
    from tpux.model import failures, host, job, machines, progress, sections, steps
    from tpux.plugin import spec

    modules = (failures, host, job, machines, progress, sections, steps, spec)
    names = {name: value for module in modules for name, value in vars(module).items()}
    answer = SimpleNamespace(__annotations__={"return": hook.__annotations__["return"]})
    return get_type_hints(answer, names, _JSON)["return"]  # of the arguments some are events, which take long to import


@functools.cache
def _fields(cls: type) -> dict[str, Type]:
    return get_type_hints(cls, localns={**_JSON, "str": _Argument} if cls in {Command, Sh} else _JSON)


def _problem(value: object, expected: Type, path: str) -> str:
    """Return what is wrong with a value, "" if nothing is.

    Args:
        value: the value.
        expected: its annotation.
        path: where the value is in the answer, such as `[0].level`; "" for the answer itself.
    """
    expected = NoneType if expected is None else expected
    origin, args = get_origin(expected), get_args(expected)
    if origin in (Union, UnionType):
        return _problem_of_union(value, args, path)
    if origin in (list, tuple, Sequence):
        if not isinstance(value, origin) or isinstance(value, (str, bytes)):
            return _wrong(value, expected, path)
        return _first(_problem(item, args[0], f"{path}[{index}]") for index, item in enumerate(value))
    if origin in (Mapping, dict):
        if not isinstance(value, origin):
            return _wrong(value, expected, path)
        keys = _first(_problem(key, args[0], f"a key of {path or 'it'}") for key in value)
        return keys or _first(_problem(item, args[1], f"{path}[{key!r}]") for key, item in value.items())
    if isclass(expected) and is_dataclass(expected) and isinstance(value, expected):
        wrong = _first(
            _problem(getattr(value, name), type_, f"{path}.{name}".lstrip("."))
            for name, type_ in _fields(expected).items()
        )
        return wrong or _problem_inside(value, path)
    if getattr(expected, "_is_protocol", False):
        return _problem_of_protocol(value, expected, path)
    if not _is_valid(value, expected):
        return _wrong(value, expected, path)
    return _problem_of_declarations(value, path) if isclass(value) else ""


def _problem_of_declarations(model: type, path: str) -> str:
    """Return what is wrong with what the model of a section `tpu` declares, "" if nothing is, or for another class."""
    from tpux.model.sections import TpuSection

    if not issubclass(model, TpuSection):
        return ""
    declared = (("transport", str), ("transferable", bool))
    return _first(_problem(getattr(model, name), type_, f"{path}.{name}".lstrip(".")) for name, type_ in declared)


def _problem_of_protocol(value: object, expected: Type, path: str) -> str:
    """Return what is wrong with an object that must have a protocol's methods and attributes, "" if nothing is."""
    methods = [name for name in vars(expected) if not name.startswith("_")]
    if missing := [name for name in methods if not callable(getattr(value, name, None))]:
        lacks = "" if len(missing) == len(methods) else f", which has no method {', '.join(missing)}"
        return _wrong(value, expected, path) + lacks
    return _first(
        _problem(getattr(value, name, None), type_, f"{path}.{name}".lstrip("."))
        for name, type_ in get_type_hints(expected).items()
    )


def _problem_of_union(value: object, alternatives: tuple[Type, ...], path: str) -> str:
    problems = {_problem(value, alternative, path): alternative for alternative in alternatives}
    if "" in problems:
        return ""
    for problem, alternative in problems.items():
        kind = get_origin(alternative) or alternative
        if isclass(kind) and isinstance(value, kind):  # the right class, with something wrong inside
            return problem
    return _wrong(value, Union[alternatives], path)  # noqa: UP007  (made of a tuple)


def _problem_inside(value: object, path: str) -> str:
    """Return what is wrong with a value whose fields have the right types, "" if nothing is."""
    if isinstance(value, Put) and isinstance(value.source, Path) and (problem := _unreadable(value.source)):
        return f"{path}.source: ".removeprefix(".") + f"expected a file that can be read, got {value.source}: {problem}"
    if isinstance(value, (Waiting, MachineStatus)) and value.poll_after < 0:
        return f"{path}.poll_after".lstrip(".") + f": expected seconds, 0 or more, got {value.poll_after:g}"
    if isinstance(value, Allocation):
        indices = [worker.index for worker in value.workers]
        if not indices or indices != list(range(len(indices))):
            return f"{path}.workers".lstrip(".") + f": expected workers numbered 0, 1, ... in order, got {indices}"
        if not value.name.strip() or not value.name.isprintable():
            return f"{path}.name".lstrip(".") + f": expected the name of the machines, in one line, got {value.name!r}"
        if value.slices < 1:
            return f"{path}.slices".lstrip(".") + f": expected 1 or more, got {value.slices}"
    if isinstance(value, Action) and value.tpu and not (value.restart and value.reapply):
        return f"{path}.tpu".lstrip(".") + ": expected only together with restart and reapply"
    if isinstance(value, Failure) and value.worker is not None and value.worker < 0:
        return f"{path}.worker".lstrip(".") + f": expected the number of a worker, got {value.worker}"
    return _problem_of_command(value, path) if isinstance(value, Command) else ""


def _problem_of_command(command: Command, path: str) -> str:
    """Return what is wrong with a command whose fields have the right types, "" if nothing is."""
    if not command.argv:
        return f"{path}.argv".lstrip(".") + ": expected the program and its arguments, got nothing"
    for name, value in command.env.items():
        if not VARIABLE_NAME.fullmatch(name):
            return f"{path}.env".lstrip(".") + f": expected names of variables, got {name!r}"
        if "\0" in value:  # it may be secret
            return f"{path}.env[{name!r}]".lstrip(".") + ": expected text without a NUL"
    for field, texts in (("argv", command.argv), ("cwd", (command.cwd,)), ("script", (command.script,))):
        if any("\0" in text for text in texts):
            return f"{path}.{field}".lstrip(".") + ": expected text without a NUL"
    return ""


def _unreadable(path: Path) -> str:
    """Return why a file cannot be read; "" if it can, or if the reason is this machine's and may pass."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return "it is a directory"
        if stat.S_ISREG(mode):  # opening a pipe would block
            path.open("rb").close()
    except OSError as error:
        return "" if error.errno in _TRANSIENT else error.strerror or str(error)
    except ValueError as error:  # a null character
        return str(error)
    return ""


def _is_valid(value: object, expected: Type) -> bool:
    origin, args = get_origin(expected), get_args(expected)
    if expected is _Json:
        return _is_json(value)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in args)
    if origin is type:
        return isclass(value) and issubclass(value, args[0])
    if expected in (str, _Argument):
        return isinstance(value, str) and _is_writable(value, "strict" if expected is str else "surrogateescape")
    if expected is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    kind = origin or expected
    return isclass(kind) and isinstance(value, kind)


def _is_json(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, tuple)):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(key) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and _is_writable(value))


def _is_writable(text: str, errors: Literal["strict", "surrogateescape"] = "strict") -> bool:
    try:
        text.encode(errors=errors)
    except UnicodeEncodeError:
        return False
    return True


def _first(problems: Iterable[str]) -> str:
    return next(filter(None, problems), "")


def _wrong(value: object, expected: Type, path: str) -> str:
    wanted = _describe(expected)
    if isinstance(value, str) and not _is_writable(value):
        wanted = "text that can be written as UTF-8"
    return f"{path}: ".removeprefix(": ") + f"expected {wanted}, got {_shown(value)}"


def _describe(expected: Type) -> str:
    """Return an annotation in words."""
    *others, last = _alternatives(expected)
    return f"{', '.join(others)} or {last}" if others else last


def _alternatives(expected: Type) -> list[str]:
    origin, args = get_origin(expected), get_args(expected)
    if origin in (Union, UnionType):
        return [words for arg in args for words in _alternatives(arg)]
    if origin is Literal:
        return [repr(arg) for arg in args]
    if origin in (list, tuple, Sequence):
        return [f"a {origin.__name__.lower()} of {_describe(args[0])}"]
    if origin in (Mapping, dict):
        return [f"a {'dict' if origin is dict else 'mapping'} of {_describe(args[0])} to {_describe(args[1])}"]
    if origin is type:
        return [f"a subclass of {_describe(args[0])}"]
    if origin is Generator:
        return ["a generator of steps (a function that yields sh(...) or put(...))"]
    if expected in (None, NoneType):
        return ["None"]
    if expected is _Argument:
        return ["str"]
    return ["JSON data" if expected is _Json else getattr(expected, "__name__", str(expected))]


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 120


def _shown(value: object) -> str:
    text = _repr.repr(value)  # never raises, even if the value's own repr does
    kind = type(value).__name__
    return text if kind in text or isinstance(value, (str, NoneType)) or isclass(value) else f"{text} ({kind})"

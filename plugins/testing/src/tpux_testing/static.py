"""What can be tested of a plugin without running any of its steps: its hooks' signatures, and its section."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import cast, get_args
from unittest.mock import MagicMock

from pydantic import BaseModel, ValidationError

from tpux import config, env
from tpux.errors import ConfigError, Problem, TpuxError
from tpux.model.failures import FAILURE_KINDS, Failure
from tpux.model.job import Command
from tpux.model.json import JsonValue
from tpux.model.machines import Worker
from tpux.model.sections import Section, TpuSection, names_of
from tpux.plugin import spec
from tpux.plugin.descriptions import descriptions
from tpux.plugin.guard import PluginError
from tpux_testing.contract import ContractError, contract, require
from tpux_testing.details import keys_of_model
from tpux_testing.sandbox import LOCAL, Sandbox
from tpux_testing.schema import schema

# A plugin that implements the first hook implements the others too.
_TOGETHER: tuple[tuple[Callable[..., object], tuple[Callable[..., object], ...]], ...] = (
    (spec.provision, (spec.inspect, spec.release)),
    (spec.inspect, (spec.provision,)),
    (spec.release, (spec.provision,)),
    (spec.tpu_section, (spec.provision,)),
)
_STEPS: tuple[Callable[..., object], ...] = (spec.check, spec.setup, spec.solve)
# Called whether the config has the plugin's section or not; with what selects the plugin, where something has to.
_WITH_ANY_SECTION: tuple[tuple[Callable[..., object], tuple[str, str] | None], ...] = (
    (spec.diagnose, None),
    (spec.solve, None),
    (spec.on_preempt, ("job", "rule")),
)
# Values of every type, one of which is wrong for any key.
_VALUES: tuple[JsonValue, ...] = (-1, 1.5, True, "", "a b\n", "~/none", [], [-1], ["a", "a"], {}, {"a": {"b": []}})


@contract
def hooks_contract(word: str, *, plugin: object = None) -> None:
    """Test a plugin's hooks: it can be loaded, no argument has a default, no hook is missing, steps are yielded.

    It calls `config_section`, `prepare_command`, which must not fail because `command.env` is empty, and `check`,
    `setup` and `solve`, without running their steps; and `diagnose`, `solve` and `on_preempt` for jobs whose config
    does not have the plugin's section, or has it empty.

    Args:
        word: the plugin.
        plugin: the module or object to use, if it is not installed.

    Raises:
        ContractError: the plugin is broken, or one of its hooks is.

    Example:
        def test_contract():
            hooks_contract("apt")
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox:
        status = sandbox.plugins.status(word)
        if status.error:
            raise ContractError(word, "", f"{status.error}; {status.hint}")
        implemented = sandbox.plugins.load(word)
        for name, function in _functions(implemented, status.hooks):
            defaults = [
                key for key, one in inspect.signature(function).parameters.items() if one.default is not one.empty
            ]
            message = f"the argument {', '.join(defaults)} has a default, so it is never passed: remove the default"
            if defaults:
                raise ContractError(word, name, message)
        for hook, others in _TOGETHER:
            missing = [one.__name__ for one in others if one.__name__ not in status.hooks]
            message = f"the plugin does not implement {' and '.join(missing)}, without which it cannot be used"
            require(hook.__name__ not in status.hooks or not missing, word, hook, message)
        for hook in _STEPS:
            if hook.__name__ in status.hooks:
                _gives_steps(sandbox, word, hook)
        for hook, key in _WITH_ANY_SECTION:
            if hook.__name__ in status.hooks:
                _copes_with_any_section(sandbox, word, hook, {key[0]: {key[1]: word}} if key else None)
        if spec.prepare_command.__name__ in status.hooks:
            _needs_no_variable(sandbox, word)


def _gives_steps(sandbox: Sandbox, word: str, hook: Callable[..., object]) -> None:
    """Require that a hook returns a generator of steps, and no list; the call of a generator function runs nothing."""
    model = sandbox.plugins.call_one(word, spec.config_section)
    section = _default_section(model)
    if model is not None and section is None:
        section = cast("Section", MagicMock())  # allows any use of the keys whose values are not known
    given: dict[str, object] = {"worker": Worker(0), "peers": [], "failure": Failure("unknown")}
    arguments = {name: value for name, value in given.items() if name in inspect.signature(hook).parameters}
    try:
        sandbox.plugins.call_one(word, hook, job=sandbox.job({}), config=section, **arguments)
    except PluginError as error:
        if error.__cause__ is None:  # a wrong answer; an exception may be due to the section
            raise
    except TpuxError:  # as for an exception, or the plugin `local` is not installed
        return


def _copes_with_any_section(
    sandbox: Sandbox, word: str, hook: Callable[..., object], selected: Mapping[str, object] | None
) -> None:
    """Require that a hook does not fail, up to its first step, because its section is absent or empty."""
    if LOCAL not in sandbox.plugins.names():
        return
    for what, job in sandbox.jobs(word, selected=selected).items():
        given: dict[str, object] = {
            "config": job.sections.get(word),
            "worker": Worker(0),
            "failure": Failure("program", 0, "exit code 1"),
            "restarts": dict.fromkeys(FAILURE_KINDS, 0),
        }
        arguments = {name: value for name, value in given.items() if name in inspect.signature(hook).parameters}
        try:
            answer = sandbox.plugins.call_one(word, hook, job=job, **arguments)
            if isinstance(answer, Generator):
                next(answer, None)
                answer.close()
        except PluginError as error:
            raise ContractError(word, hook.__name__, f"for a job {what}: {error}") from error
        except TpuxError:  # what the plugin itself reports, such as a job that is not its own
            continue


def _default_section(model: type[Section] | None) -> Section | None:
    """Return a section without any keys; None if it has required ones."""
    try:
        return None if model is None else model()
    except ValidationError:
        return None


def _needs_no_variable(sandbox: Sandbox, word: str) -> None:
    """Require that `prepare_command` works without variables: `tpux cp` asks it only where the program starts."""
    section, job = _default_section(sandbox.plugins.call_one(word, spec.config_section)), sandbox.job({})

    def problem(variables: Mapping[str, str]) -> str:
        command = Command(argv=("true",), script="true", env=variables)
        try:
            sandbox.plugins.call_one(
                word, spec.prepare_command, job=job, command=command, config=section, worker=Worker(0)
            )
        except TpuxError as error:
            return error.message
        return ""

    # A hook that fails either way may need what this job does not have, such as an answer of its own `resolve`.
    variables = {name.replace("*", "NAME"): "1" for name in env.OF_PROGRAMS}
    if not problem(variables) and (failed := problem({})):
        raise ContractError(word, "prepare_command", f"it fails if command.env is empty: {failed}")


def _functions(plugin: object, hooks: list[str]) -> Iterator[tuple[str, Callable[..., object]]]:
    for name in hooks:
        function = getattr(plugin, name.removesuffix(" (wrapper)"), None)
        if callable(function):
            yield name, function


@contract
def section_contract(word: str, example: Mapping[str, object] | None = None, *, plugin: object = None) -> None:
    """Test the config section of a plugin, and the section `tpu` of an allocator, without running anything.

    Each section and each key has a docstring; each key is in the JSON Schema, and hides no method of `Section`; a value
    that a key does not accept is an error with its position in the section, whatever the value's type, and never an
    exception of a validator.

    Args:
        word: the plugin.
        example: the keys of a valid section, required if some have no default.
        plugin: the module or object to use, if it is not installed.

    Raises:
        ContractError: the section does not keep it; also if the plugin has none.

    Example:
        def test_contract():
            section_contract("apt", {"packages": ["htop"]})
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox:
        own, tpu = _documented_sections(sandbox, word)
        if own is not None:
            section = _Section(sandbox, word, word, own, dict(example or {}))
            section.accepts_example()
            section.positions()
        if tpu is not None:
            section = _Section(sandbox, word, "tpu", tpu, {"allocation_mode": word})
            section.positions(skip=frozenset({*TpuSection.model_fields}))


@contract
def documentation_contract(word: str, *, plugin: object = None) -> None:
    """Test the part of `section_contract` that needs no example: each section and each key is documented.

    Args:
        word: the plugin.
        plugin: the module or object to use, if it is not installed.

    Raises:
        ContractError: a docstring is missing; also if the plugin has no section.
    """
    with Sandbox({} if plugin is None else {word: plugin}) as sandbox:
        _documented_sections(sandbox, word)


def _documented_sections(sandbox: Sandbox, word: str) -> tuple[type[Section] | None, type[TpuSection] | None]:
    """Return the plugin's own section and its section `tpu`; require the documentation of both."""
    own = sandbox.plugins.call_one(word, spec.config_section)
    tpu = sandbox.plugins.call_one(word, spec.tpu_section)
    require(own or tpu, word, spec.config_section, "the plugin has no section to test")
    for model in (own, tpu):
        if model is not None:
            keys_of_model(model)  # names the section that has no JSON Schema
    properties = cast("dict[str, dict[str, JsonValue]]", schema(sandbox.plugins)["$defs"])
    if own is not None:
        _documented(word, spec.config_section, own, properties)
    if tpu is not None:
        _documented(word, spec.tpu_section, tpu, properties)
    return own, tpu


def _documented(
    word: str, hook: Callable[..., object], model: type[BaseModel], definitions: Mapping[str, Mapping[str, JsonValue]]
) -> None:
    """Require a docstring of a section and of each of its keys, and of those of nested sections.

    Args:
        word: the plugin.
        hook: the hook that has returned the model.
        model: the section.
        definitions: the JSON Schema of the nested sections, by the name of their class.
    """
    require(model.__doc__, word, hook, f"the class {model.__name__} has no docstring, which is its description")
    entry = definitions.get(model.__name__, {})
    described = cast("Mapping[str, Mapping[str, JsonValue]]", entry.get("properties", {}))
    for name, field in model.model_fields.items():
        if issubclass(model, Section) and callable(getattr(Section, name, None)):
            message = f"the key {name} of {model.__name__} hides the method {name} of Section, which tpux calls"
            raise ContractError(word, hook.__name__, f'{message}: {name}_: ... = Field(validation_alias="{name}")')
        message = f"the key {name} of {model.__name__} has no docstring, which is its description in the JSON Schema"
        require(descriptions(model).get(name), word, hook, message)
        keys = [key for key in names_of(name, field) if key in described]
        message = f"the key {name} of {model.__name__} is not in the JSON Schema with its description"
        require(any(described[key].get("description") for key in keys), word, hook, message)
        for nested in _models(field.annotation):
            _documented(word, hook, nested, definitions)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


class _Section:
    """One section, validated as in a config file."""

    def __init__(
        self, sandbox: Sandbox, word: str, name: str, model: type[Section], example: dict[str, object]
    ) -> None:
        self._sandbox, self._word, self._name, self._model, self._example = sandbox, word, name, model, example
        self._hook = spec.tpu_section if name == "tpu" else spec.config_section

    def accepts_example(self) -> None:
        """Require that the example is valid."""
        errors, text = self._errors(self._example)
        found = "\n".join(map(str, errors))
        message = f"the example is not valid; pass `example` with a valid one:\n{text}\n{found}"
        require(not errors, self._word, self._hook, message)

    def positions(self, skip: frozenset[str] = frozenset()) -> None:
        """Require that every value that is wrong is an error with a position within the section."""
        self._must_be_located("an_unknown_key_of_a_contract", True)
        for key in self._model.model_fields:
            for value in () if key in skip else _VALUES:
                self._no_exception(key, value)
                self._must_be_located(key, value)

    def _no_exception(self, key: str, value: JsonValue) -> None:
        """Check that a validator raises nothing but ValueError: pydantic passes everything else on."""
        try:
            self._model.model_validate({**self._example, key: value}, context={"check_files": True})
        except ValidationError:
            return
        # The boundary to plugin code: anything else that a validator raises is the finding.
        except Exception as error:
            message = f"{key}: {value!r} raises {error!r} in a validator; raise ValueError, which gets a position"
            raise ContractError(self._word, self._hook.__name__, message) from error

    def _must_be_located(self, key: str, value: JsonValue) -> None:
        errors, text = self._errors({**self._example, key: value})
        if key not in self._model.model_fields:
            message = f"an unknown key is not an error; do not change `extra` of the model:\n{text}"
            require(errors, self._word, self._hook, message)
        lines = text.splitlines()
        for error in errors:
            _, _, place = error.where.partition(".yaml:")
            line = place.split(":")[0]
            within = line.isdecimal() and lines[int(line) - 1].startswith((" ", f"{self._name}:"))
            message = f"an error has no position in the section: {error} for\n{text}"
            require(within, self._word, self._hook, message)

    def _errors(self, section: Mapping[str, object]) -> tuple[list[Problem], str]:
        text = _yaml(self._name, section)
        try:
            config.load(self._sandbox.write_config(text), plugins=self._sandbox.plugins)
        except ConfigError as error:
            return error.problems, text
        return [], text


def _yaml(name: str, section: Mapping[str, object]) -> str:
    """Return a config with a section, one line per key; JSON is YAML."""
    keys = "".join(f"  {key}: {json.dumps(value, default=str)}\n" for key, value in section.items())
    return f"command:\n  cmd: 'true'\n{name}:{' {}' if not keys else ''}\n{keys}"

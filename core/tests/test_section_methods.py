"""Methods of a plugin's section that fail or answer wrongly: the error names the plugin and the method."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tpux import Section, TpuSection, hookimpl
from tpux.plugin.manager import Plugins

Problems = Callable[..., list[str]]
HINT = "a bug in the plugin, not in your config: report it to its authors"
FINISHED = "command: {cmd: x, finished_by: [bad], require_finished: true}"


def section_with(method: str, answer: Callable[[], object]) -> type[Section]:
    """Return a section one of whose methods answers that."""
    return type("BadSection", (Section,), {"key": "", "__annotations__": {"key": "str"}, method: lambda _: answer()})


class Bad:
    """A detector with a section."""

    def __init__(self, model: type[Section]) -> None:
        self.model = model

    @hookimpl
    def config_section(self) -> type[Section]:
        return self.model

    @hookimpl
    def classify_failure(self) -> list[object]:
        return []


def fail() -> object:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("warnings", "command: {cmd: x}"),
        ("exposed_keys", "command: {cmd: x}"),
        ("secret_keys", "command: {cmd: x}"),
        ("needs_finished_by", "command: {cmd: x}"),
        ("never_finished", FINISHED),
    ],
)
@pytest.mark.parametrize("answer", [fail, lambda: None, lambda: 5, lambda: [1]])
def test_a_faulty_method_of_a_section_names_the_plugin(
    problems: Problems, plugins: Plugins, method: str, config: str, answer: Callable[[], object]
) -> None:
    plugins.add("bad", Bad(section_with(method, answer)))
    (problem,) = problems(f"{config}\nbad: {{key: a}}")
    assert problem.startswith("c.yaml:2:1: plugin bad "), problem
    assert f"{method}() of its section: " in problem
    assert ("ZeroDivisionError: division by zero" if answer is fail else "expected ") in problem


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        ("3", "expected int or None, got '3'"),
        (2.0, "expected int or None, got 2.0 (float)"),
        (True, "expected int, got True (bool)"),
        (0, "expected 1 or more, or None, got 0"),
        (-1, "expected 1 or more, or None, got -1"),
    ],
)
def test_a_wrong_count_of_workers_is_an_error_of_the_allocator(
    problems: Problems, plugins: Plugins, count: object, expected: str
) -> None:
    class Odd(TpuSection):
        def count_workers(self) -> int | None:
            return count  # type: ignore[return-value]

    class Allocator:
        @hookimpl
        def provision(self) -> object:
            raise AssertionError

        @hookimpl
        def tpu_section(self) -> type[TpuSection]:
            return Odd

        @hookimpl
        def connect(self) -> object:
            raise AssertionError

    plugins.add("odd", Allocator())
    (problem,) = problems("tpu: {allocation_mode: odd}\ncommand: {cmd: x, workers: [0, 5]}")
    wrong = f"plugin odd gave a wrong answer from count_workers() of its section: {expected}"
    assert problem == f"c.yaml:1:24: {wrong} | {HINT}"


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        (3, "plugin odd gave a wrong answer from tpu_section: transport: expected str, got 3 (int)"),
        ("nope", "transport of allocator 'odd': no plugin 'nope' is installed"),
        ("docker", "transport of allocator 'odd': plugin 'docker' does not implement connect"),
    ],
)
def test_an_allocator_that_declares_a_wrong_transport_is_named(
    problems: Problems, plugins: Plugins, transport: str, expected: str
) -> None:
    class Odd(TpuSection):
        pass

    Odd.transport = transport

    class Allocator:
        @hookimpl
        def provision(self) -> object:
            raise AssertionError

        @hookimpl
        def tpu_section(self) -> type[TpuSection]:
            return Odd

    plugins.add("odd", Allocator())
    (problem,) = problems("tpu: {allocation_mode: odd}\ncommand: {cmd: x}")
    assert problem.startswith(f"c.yaml:1:24: {expected}")

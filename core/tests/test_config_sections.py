"""Which sections a job has: the same ones when it is created and whenever its stored config is read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from tpux import Section, TpuSection, config, hookimpl
from tpux.plugin.manager import Plugins


class Words(Section):
    words: list[str] = Field(default_factory=list)
    """The words."""


class Plain:
    @hookimpl
    def config_section(self) -> type[Section]:
        return Words


class Detector(Plain):
    @hookimpl
    def classify_failure(self) -> None: ...


class Rule(Plain):
    @hookimpl
    def on_preempt(self) -> None: ...


class Module(Plain):
    @hookimpl
    def check(self) -> Iterator[object]:
        yield from ()


class Environment(Plain):
    @hookimpl
    def run(self, command: object) -> object:
        return command


class Listener(Plain):
    @hookimpl
    def on_event(self) -> None: ...


class Transport(Plain):
    @hookimpl
    def connect(self) -> None: ...


class TunnelSection(Words):
    def connects_through(self) -> str:
        return "wire"


class Tunnel(Transport):
    @hookimpl
    def config_section(self) -> type[Section]:
        return TunnelSection


class TunnelTpuSection(TpuSection):
    transport: ClassVar[str] = "tunnel"


class Allocator(Plain):
    @hookimpl
    def provision(self) -> None: ...


class TunnelAllocator(Allocator):
    @hookimpl
    def tpu_section(self) -> type[TpuSection]:
        return TunnelTpuSection


FAKES: Mapping[str, object] = {
    "finder": Detector(),
    "reader": Detector(),
    "keep-going": Rule(),
    "files": Module(),
    "mount": Module(),
    "box": Environment(),
    "mail": Listener(),
    "tunnel": Tunnel(),
    "wire": Transport(),
    "local": Allocator(),
    "far": TunnelAllocator(),
}


def make_plugins() -> Plugins:
    plugins = Plugins({})
    for name, fake in FAKES.items():
        plugins.add(name, fake)
    return plugins


def lists(*names: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True)


@given(
    written=st.dictionaries(st.sampled_from(sorted(FAKES)), st.sampled_from(["null", "{}", "{words: [a]}"])),
    rule=st.sampled_from(["null", "resume", "keep-going"]),
    environment=st.sampled_from(["null", "box"]),
    allocator=st.sampled_from(["local", "far"]),
    modules=st.none() | lists("files", "mount", "box"),
    finished_by=lists("finder", "reader"),
)
def test_the_sections_of_a_job_are_the_same_when_it_is_created_and_loaded(
    written: dict[str, str],
    rule: str,
    environment: str,
    allocator: str,
    modules: list[str] | None,
    finished_by: list[str],
) -> None:
    text = f"job: {{rule: {rule}, env_type: {environment}}}\ntpu: {{allocation_mode: {allocator}}}\n"
    listed = "null" if modules is None else f"[{', '.join(modules)}]"
    text += f"setup: {{modules: {listed}}}\n"
    text += f"command: {{cmd: x, finished_by: [{', '.join(finished_by)}]}}\n"
    text += "".join(f"{name}: {content}\n" for name, content in written.items())
    plugins = make_plugins()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "c.yaml")
        path.write_text(text)
        loaded = config.load(path, plugins=plugins)
    again = config.from_resolved(loaded.resolved(id="000001", user="u"), plugins=plugins, secrets={})
    assert sorted(again.sections) == sorted(loaded.sections), text
    own = {name: section for name, section in loaded.sections.items() if name in FAKES}
    assert {name: again.sections[name] for name in own} == own
    selected = {allocator, *loaded.modules, *finished_by} | ({"keep-going"} & {rule})
    assert selected | ({"tunnel", "wire"} if allocator == "far" else set()) <= own.keys()


@pytest.mark.parametrize("section", ["", "finder:\n", "finder: {}\n"])
def test_a_trusted_detector_gets_its_defaults_if_the_config_does_not_fill_in_its_section(section: str) -> None:
    plugins = make_plugins()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "c.yaml")
        path.write_text(f"{section}command: {{cmd: x, finished_by: [finder]}}\n")
        stored = config.load(path, plugins=plugins).resolved(id="000001", user="u")
    assert config.from_resolved(stored, plugins=plugins, secrets={}).sections["finder"] == Words()

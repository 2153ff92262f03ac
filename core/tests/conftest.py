"""Shared by core's tests: fake plugins, distributions that install quickly, configs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import dedent
from typing import ClassVar

import pytest
from pydantic import Field

from tpux import Section, TpuSection, hookimpl
from tpux.config import load
from tpux.config.resolved import Loaded
from tpux.errors import ConfigError
from tpux.fields import Accelerator, LocalFile, workers_of
from tpux.plugin.manager import Plugins

Install = Callable[..., Path]
Load = Callable[..., Loaded]
Problems = Callable[..., list[str]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution as pip would: a module, METADATA and entry_points.txt."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def do(dist: str, code: str = "", *, entries: str | None = None, group: str = "tpux", version: str = "1.0") -> Path:
        module = dist.replace("-", "_")
        (site / f"{module}.py").write_text(dedent(code))
        info = site / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{entries or f'{dist} = {module}'}\n")
        return site

    yield do
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(site) in str(sys.modules[name].__file__):
            del sys.modules[name]


class DockerSection(Section):
    """The container."""

    image: str
    """The image."""
    flags: list[str] = Field(default_factory=list)
    mount_dirs: list[str] = Field(default_factory=list)
    workdir: str | None = None
    env_vars: list[str] = Field(default_factory=list)


class GcsfuseSection(Section):
    bucket_name: str
    mount_path: str


class Identity(Section):
    private_key: str
    public_key: str
    config_entry: str = ""


class SshSection(Section):
    private_key: str | None = None
    tpu_private_key: str | None = None
    tpu_public_key: str | None = None
    identities: list[Identity] = Field(default_factory=list)


class CondaSection(Section):
    name: str = "base"
    config_file: LocalFile | None = None


class MailSection(Section):
    api_key: str
    receiver: str = ""


class Named:
    """A plugin with a section."""

    def __init__(self, model: type[Section] | None = None) -> None:
        self.model = model

    @hookimpl
    def config_section(self) -> type[Section] | None:
        return self.model


class Module(Named):
    @hookimpl
    def check(self) -> Iterator[object]:
        yield from ()


class Environment(Named):
    @hookimpl
    def run(self, command: object) -> object:
        return command


class Transport(Module):
    @hookimpl
    def connect(self) -> None:
        return None


class CloudTpuSection(TpuSection):
    """The machines in a cloud."""

    transport: ClassVar[str] = "ssh"
    accelerator: Accelerator | list[Accelerator] | None = None
    """The accelerator."""
    zone: str | list[str] | None = None
    """The zone."""
    version: str | None = None
    """The runtime version."""
    project: str | None = None
    """The project."""
    network: str | None = None
    """The network."""
    startup_script: LocalFile | None = None
    """A script."""
    tags: list[str] = Field(default_factory=list)
    """Tags."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""
    metadata: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Metadata."""
    flags: list[str] = Field(default_factory=list)
    """Flags."""

    def count_workers(self) -> int:
        first = self.accelerator[0] if isinstance(self.accelerator, list) else self.accelerator
        return workers_of(first) * self.node_count


class Allocator(Named):
    """An allocator, by default one whose `tpu` section has core's keys only."""

    def __init__(self, tpu: type[TpuSection] | None = None) -> None:
        super().__init__()
        self.tpu = tpu

    @hookimpl
    def provision(self) -> None:
        return None

    @hookimpl
    def tpu_section(self) -> type[TpuSection] | None:
        return self.tpu


class Rule:
    @hookimpl
    def on_preempt(self) -> None:
        return None


@pytest.fixture
def plugins() -> Plugins:
    """Fake plugins; venv, wandb and some more are not installed."""
    fakes: Mapping[str, object] = {
        "local": Allocator(CloudTpuSection),
        "tpu-vm": Allocator(CloudTpuSection),
        "queued-resources": Allocator(CloudTpuSection),
        "bare": Allocator(),
        "docker": Environment(DockerSection),
        "conda": Environment(CondaSection),
        "gcsfuse": Module(GcsfuseSection),
        "ssh": Transport(SshSection),
        "mail": Named(MailSection),
        "keep-going": Rule(),
    }
    plugins = Plugins({})
    for name, fake in fakes.items():
        plugins.add(name, fake)
    return plugins


@pytest.fixture
def read(tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a config from its text, as `c.yaml` in the current directory."""
    monkeypatch.chdir(tmp_path)

    def do(text: str | bytes, *overrides: str, environ: Mapping[str, str] | None = None) -> Loaded:
        Path("c.yaml").write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
        return load(Path("c.yaml"), overrides, plugins=plugins, environ=environ or {})

    return do


@pytest.fixture
def problems(read: Load) -> Problems:
    """Return the errors of a config, each as `location: message | hint`."""

    def do(text: str | bytes, *overrides: str, environ: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            read(text, *overrides, environ=environ)
        assert caught.value.exit_code == 2
        return [f"{problem.where}: {problem.message} | {problem.hint}" for problem in caught.value.problems]

    return do

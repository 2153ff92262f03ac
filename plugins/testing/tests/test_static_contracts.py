"""Each wrong plugin is rejected by the contract that it violates, with a message that says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import pytest
from pydantic import AfterValidator, ConfigDict, Field

from tpux import Action, Section, TpuSection, hookimpl, sh
from tpux_testing import ContractError, hooks_contract, section_contract


class Good(Section):
    """A section."""

    size: int = 1
    """A size."""


class OfSection:
    def __init__(self, model):
        self.model = model

    @hookimpl
    def config_section(self):
        return self.model


class Default:
    @hookimpl
    def check(self, config=None):
        yield from ()


class NoRelease:
    @hookimpl
    def provision(self, request):
        return None

    @hookimpl
    def inspect(self, request):
        return None


class UnknownArgument:
    @hookimpl
    def check(self, konfig):
        yield from ()


class NeedsVariables:
    @hookimpl
    def prepare_command(self, command):
        return replace(command, cwd=command.env["TPUX_RUN_HOME"])


class NeedsSection:
    @hookimpl
    def prepare_command(self, command, config):
        return replace(command, cwd=config.directory)


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (NeedsVariables(), "hook prepare_command: it fails if command.env is empty: "),
        (Default(), "plugin fake, hook check: the argument config has a default, so it is never passed"),
        (NoRelease(), "does not implement release, without which it cannot be used"),
    ],
)
def test_wrong_hooks(plugin, message):
    with pytest.raises(ContractError) as error:
        hooks_contract("fake", plugin=plugin)
    assert message in str(error.value)


def test_a_hook_that_needs_its_section():
    hooks_contract("fake", plugin=NeedsSection())


class Diagnoses(OfSection):
    @hookimpl
    def diagnose(self, config):
        yield sh("true " + str(config.size))


class Decides(OfSection):
    """A rule: it gets its defaults in the jobs that select it."""

    @hookimpl
    def on_preempt(self, job):
        return Action("resume" if job.section("fake", Good).size == 1 else None)


class DecidesWithWords(OfSection):
    @hookimpl
    def on_preempt(self, job):
        return Action(job.section("fake", self.model).words[0])


class Counts(OfSection):
    """A rule as the documentation has it: a kind without restarts has 0 of them."""

    @hookimpl
    def on_preempt(self, failure, restarts):
        return Action("resume" if restarts[failure.kind] < 3 else None)


class Words(Section):
    """A section."""

    words: list[str] = Field(default_factory=list)
    """The words."""


def test_a_hook_that_needs_a_section_that_the_job_does_not_have():
    with pytest.raises(ContractError, match=r"hook diagnose: for a job whose config has no section fake: .*'size'"):
        hooks_contract("fake", plugin=Diagnoses(Good))
    hooks_contract("fake", plugin=Decides(Good))
    hooks_contract("fake", plugin=Counts(Good))
    with pytest.raises(
        ContractError, match=r"hook on_preempt: for a job whose config has no section fake: .*IndexError"
    ):
        hooks_contract("fake", plugin=DecidesWithWords(Words))


def test_a_broken_plugin(tmp_path, monkeypatch):
    (tmp_path / "broken_plugin.py").write_text("import tpux\n@tpux.hookimpl\ndef chekc(): ...")
    metadata = tmp_path / "broken_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[tpux]\nfake = broken_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ContractError, match="plugin fake: there is no hook 'chekc': did you mean 'check'"):
        hooks_contract("fake")


class NoClassDocstring(Section):
    size: int = 1
    """A size."""


class NoKeyDocstring(Section):
    """A section."""

    size: int = 1


class Inner(Section):
    """Nested."""

    deep: int = 1


class NoNestedDocstring(Section):
    """A section."""

    inner: tuple[Inner, ...] = ()
    """Nested."""


def _raises(value: int) -> int:
    return {1: 1}[value]


class RaisesKeyError(Section):
    """A section."""

    size: Annotated[int, AfterValidator(_raises)] = 1
    """A size."""


class AllowsUnknown(Section):
    """A section."""

    model_config = ConfigDict(extra="ignore")
    size: int = 1
    """A size."""


class Required(Section):
    """A section."""

    size: int
    """A size."""


class HidesMethod(Section):
    """A section."""

    buckets: list[str] = Field(default_factory=list)
    """Where to write to."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "the plugin has no section"),
        (dict, "expected a subclass of Section"),
        (NoClassDocstring, "the class NoClassDocstring has no docstring"),
        (NoKeyDocstring, "the key size of NoKeyDocstring has no docstring"),
        (NoNestedDocstring, "the key deep of Inner has no docstring"),
        (RaisesKeyError, "size: -1 raises KeyError(-1) in a validator; raise ValueError, which gets a position"),
        (AllowsUnknown, "an unknown key is not an error"),
        (HidesMethod, "the key buckets of HidesMethod hides the method buckets of Section, which tpux calls"),
        (Required, "the example is not valid; pass `example`"),
    ],
)
def test_wrong_sections(model, message):
    with pytest.raises(ContractError) as error:
        section_contract("fake", plugin=OfSection(model))
    assert str(error.value).startswith("plugin fake")
    assert message in str(error.value)


@pytest.mark.system
def test_right_sections():
    section_contract("fake", plugin=OfSection(Good))
    section_contract("fake", {"size": 2}, plugin=OfSection(Required))


class OwnTpuSection(TpuSection):
    """Machines."""

    zone: str = "a"


class Allocator(NoRelease):
    @hookimpl
    def tpu_section(self):
        return OwnTpuSection

    @hookimpl
    def release(self, request):
        return None


def test_a_wrong_tpu_section():
    with pytest.raises(ContractError, match="hook tpu_section: the key zone of OwnTpuSection has no docstring"):
        section_contract("fake", plugin=Allocator())

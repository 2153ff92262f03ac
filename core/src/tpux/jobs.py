"""A job as plugins see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from tpux.sections import CommandSection, JobSection, Section, SetupSection, TpuSection, WatchSection

S = TypeVar("S", bound="Section")


@dataclass(frozen=True)
class Job:
    """One config, run until it has finished. Plugins read it and never change it.

    Attributes:
        id: six digits or more, unique in the store.
        user: whose job it is.
        store_id: the store's random name, so that two stores never meet on one worker.
        directory: the job's directory on this machine.
        sections: the config by section, validated; core's own five are always there.
        modules: the modules that prepare its workers, in their order, the environment among them.
        environment: the module that wraps the command, None where it runs as it is.
        attempt: the attempt at hand, 0 before the first.
        stage: how many times it was resumed since it last started from scratch.
    """

    id: str
    user: str
    store_id: str
    directory: Path
    sections: Mapping[str, Section]
    modules: tuple[str, ...] = ()
    environment: str | None = None
    attempt: int = 0
    stage: int = 0

    @property
    def name(self) -> str:
        """What the job is called."""
        return self.job.name

    @property
    def key(self) -> str:
        """Its name wherever stores could meet: `<store id>-<user>-<job id>`."""
        return f"{self.store_id}-{self.user}-{self.id}"

    @property
    def job(self) -> JobSection:
        """The `job` section."""
        return cast("JobSection", self.sections["job"])

    @property
    def tpu(self) -> TpuSection:
        """The `tpu` section."""
        return cast("TpuSection", self.sections["tpu"])

    @property
    def setup(self) -> SetupSection:
        """The `setup` section."""
        return cast("SetupSection", self.sections["setup"])

    @property
    def command(self) -> CommandSection:
        """The `command` section."""
        return cast("CommandSection", self.sections["command"])

    @property
    def watch(self) -> WatchSection:
        """The `watch` section."""
        return cast("WatchSection", self.sections["watch"])

    def section(self, word: str, model: type[S]) -> S | None:
        """A plugin's own section, None where the config has none.

        Args:
            word: the plugin's word.
            model: the class that its `config_section` gives.
        """
        section = self.sections.get(word)
        return section if isinstance(section, model) else None

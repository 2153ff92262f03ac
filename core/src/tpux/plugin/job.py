"""A job as plugins see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from tpux.plugin.machines import MachineStatus
from tpux.plugin.steps import Step

if TYPE_CHECKING:
    from tpux.plugin.sections import CommandSection, JobSection, Section, SetupSection, TpuSection, WatchSection

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


@dataclass(frozen=True)
class Command:
    """A program to start on a worker.

    Attributes:
        argv: the program and its arguments. The user's script is a file there: `script` in argv's
            place is never a string between quotes.
        script: the path of the user's script on the worker, for an environment to wrap.
        env: variables to set; they travel in a file of mode 0600, never in an argument list.
        stop: steps that end it before its processes are looked for: a container outlives its client.
    """

    argv: tuple[str, ...]
    script: str
    env: Mapping[str, str] = field(default_factory=dict)
    stop: tuple[Step, ...] = ()


@dataclass(frozen=True)
class WorkerExit:
    """How the command ended on one worker.

    Attributes:
        code: its exit code as a shell tells it, 128 + n where signal n ended it; None where it never
            said (the machine rebooted, or the process was killed together with its runner).
        log: the program's output, on this machine.
        at: seconds since the epoch when the end was seen.
    """

    worker: int
    code: int | None
    log: Path
    at: float
    reason: str = ""


@dataclass(frozen=True)
class Attempt:
    """One try at running the command, as `classify_failure` sees it once it has ended."""

    number: int
    endings: tuple[WorkerExit, ...]
    machines: MachineStatus

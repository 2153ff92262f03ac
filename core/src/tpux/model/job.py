"""A job as plugins see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from tpux.model import program_output
from tpux.model.json import JsonValue
from tpux.model.machines import MachineStatus
from tpux.model.steps import Step

if TYPE_CHECKING:
    from tpux.model.sections import (
        CommandSection,
        JobSection,
        PluginsSection,
        Section,
        SetupSection,
        SolveSection,
        TpuSection,
        WatchSection,
    )

S = TypeVar("S", bound="Section")


def job_key(store_id: str, user: str, job: str) -> str:
    """Return `Job.key`."""
    return f"{store_id}-{user}-{job}"


def is_url(directory: str) -> bool:
    """Return whether an output directory is a URL, and not a path on the workers."""
    return "://" in directory


@dataclass(frozen=True)
class Checkpoint:
    """What a search for checkpoints has found.

    Attributes:
        directory: the output directory that the next attempt resumes from; "" if none has a checkpoint.
    """

    directory: str


@dataclass(frozen=True)
class Job:
    """One config, run until it has finished; read-only.

    Attributes:
        id: six digits or more, unique in the store.
        user: the owner.
        store_id: the store's random id, so that jobs of two stores do not collide on one worker.
        directory: the job's directory on this machine.
        sections: the validated config by section; core's own seven are always present.
        modules: the modules that prepare the workers, in order, the environment included.
        environment: the module that wraps the command, None if it runs unwrapped.
        attempt: the current attempt, 0 before the first.
        stage: how many times the job was resumed since it last started from scratch.
        resolved: what `resolve` of each selected plugin returned when the job was created, or when `tpux resume`
            or `tpux rerun` last changed its config while it held no machines.
        token: random digits that tell the job from those of the same id in other stores.
        previous: while the config of an existing job changes, in `resolve` and `preflight`: what `resolve` of each
            plugin had returned for it. `resolved` lacks it where `resolve` is to read its source anew (`--sync`).
        machines: the name of machines that no job holds, such as the TPU of `tpux ssh NAME`; the job then only stands
            for them, and is not in the store. "" for a job.
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
    resolved: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    token: str = ""
    machines: str = ""
    previous: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The job's name, with the suffix of `job.worker_num`."""
        return self.job.numbered(self.job.name)

    @property
    def tpu_name(self) -> str:
        """`tpu.name` with the suffix of `job.worker_num`, which `${job.name}` in it has already; "" without one."""
        name = self.tpu.name or ""
        return self.job.numbered(name) if name and not name.endswith(f"-{self.job.worker_num}") else name

    @property
    def key(self) -> str:
        """A name that is unique across stores: `<store id>-<user>-<job id>`."""
        return job_key(self.store_id, self.user, self.id)

    @property
    def unique_id(self) -> str:
        """The job's id and token, such as `000012-3fa9`: a suffix for names that jobs of other stores must not have."""
        return f"{self.id}-{self.token}" if self.token else self.id

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

    @property
    def solve(self) -> SolveSection:
        """The `solve` section."""
        return cast("SolveSection", self.sections["solve"])

    @property
    def disabled_plugins(self) -> frozenset[str]:
        """The detectors, solvers and listeners that the job does without."""
        section = cast("PluginsSection | None", self.sections.get("plugins"))
        return frozenset(section.disabled if section else ())

    def section(self, word: str, model: type[S]) -> S | None:
        """Return a plugin's own section, None if the config has none.

        Args:
            word: the plugin's name.
            model: the class that its `config_section` returns.
        """
        section = self.sections.get(word)
        return section if isinstance(section, model) else None


@dataclass(frozen=True)
class Command:
    """A program to start on a worker.

    Attributes:
        argv: the program and its arguments. The user's script is passed as a file, never as text.
        script: the path of the user's script on the worker, for an environment to wrap.
        env: variables to set; they are sent in a file of mode 0600, never in an argument list.
        stop: steps that end the program before its processes are signalled: a container outlives its client.
        cwd: the directory in which the program starts, absolute or relative to the worker's home directory. Core
            changes into it; an environment that has directories of its own, such as a container, makes it available
            there and returns `.`, the home directory.
        directories: absolute paths of directories on the worker that the program writes, beside its output directory.
            An environment that has directories of its own creates them, and makes them available at the same paths.
            Since 0.1.
        beside: it is not the job's program, but a user's command such as that of `tpux exec`, which may run at the same
            time. An environment that isolates the program runs it where the program is, if that runs, and `script` is
            no file. Since 0.1.
    """

    argv: tuple[str, ...]
    script: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # it holds the secrets
    stop: tuple[Step, ...] = ()
    cwd: str = "."
    directories: tuple[str, ...] = ()
    beside: bool = False

    @property
    def way_out(self) -> str:
        """What a message adds that the environment is missing: how a user does without it. Since 0.1."""
        return " (--host does without it)" if self.beside else ""


@dataclass(frozen=True)
class WorkerExit:
    """How the command ended on one worker.

    Attributes:
        code: the exit code as a shell reports it, 128 + n if signal n ended the program; None if unknown (the
            machine rebooted, or the process was killed together with its runner).
        log: the program's output, on this machine.
        at: when it ended, in seconds since the epoch: by the worker's clock, or when that was observed.
        reason: why the exit code is unknown, or why core ended the program; "" otherwise.
        ended_by_tpux: core ended the program, so its exit code says nothing.
        until: output that was fetched later, in seconds since the epoch, does not count: core had ended the program.
            Since 0.1.
    """

    worker: int
    code: int | None
    log: Path
    at: float
    reason: str = ""
    ended_by_tpux: bool = False
    until: float | None = None

    @property
    def failed(self) -> bool:
        """True if the program failed by itself."""
        return self.code != 0 and not self.ended_by_tpux

    def tail(self) -> str:
        """Return the last 32 KiB of the log, in which a failure is stated; "" if there is no log."""
        return program_output.tail(self.log, until=self.until)

    def time_of(self, line: str) -> float:
        """Return when a line of `tail` was printed, in seconds since the epoch, as far as is known; at most `at`.

        That is when core fetched it. Core records that every 10 s, and of the last fetches before the end of a worker's
        program each; within one such piece of output it is the earliest time. Since 0.1.

        Args:
            line: the line, as `find_line` returns it.
        """
        found = program_output.earliest_time(self.log, line)
        return self.at if found is None else min(self.at, found)

    def statement(self) -> str:
        """Return the line of the log that states why the program failed: the exception, or the fatal error.

        Without either it is the last line; "" if there is none.
        """
        return program_output.statement(self.tail(), self.code)

    def exception(self) -> str:
        """Return the exception of the last traceback of the log, "" if there is none. Since 0.1."""
        return program_output.exception(self.tail())

    def fatal_error(self) -> str:
        """Return the first line with which the program has ended itself, such as a failed check; "" if there is none.

        Since 0.1.
        """
        return program_output.fatal_error(self.tail())


@dataclass(frozen=True)
class Attempt:
    """An attempt that has ended, or has been silent for long, as detectors receive it.

    Attributes:
        number: its number, from 1.
        endings: how the command ended on each worker. One that is still running, or was lost with the machines, has the
            code None and has not failed by itself.
        machines: the last answer of the allocator.
        output_dir: its output directory, on the workers.
        collected: what `collect` of each detector returned, by worker and by the detector's name.
        repaired: the solvers have run on these machines since the attempt before. Since 0.1.
    """

    number: int
    endings: tuple[WorkerExit, ...]
    machines: MachineStatus
    output_dir: str = ""
    collected: Mapping[int, Mapping[str, Mapping[str, JsonValue]]] = field(default_factory=dict)
    repaired: bool = False

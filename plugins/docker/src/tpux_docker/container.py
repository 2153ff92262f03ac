"""The arguments of `docker run`, and the variables of the container, from plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tpux import Command, Job, Worker
from tpux_docker.scripts import HOLD, INIT
from tpux_docker.section import DockerSection, is_ignored

# Devices and privileges that libtpu needs (memlock: for the VFIO devices of v5e and v6e), the workers' own network, and
# shared memory for data loaders. An option of the config with one of these names replaces the default.
# Source: cloud.google.com/tpu/docs, "Run TPU workloads in a Docker container".
_DEFAULTS = {
    "--privileged": ("--privileged",),
    "--network=host": ("--network", "--net"),
    "--ipc=host": ("--ipc", "--shm-size"),
    "--ulimit=memlock=-1:-1": ("--ulimit",),
}
_RUN_MARKERS = {"TPUX_RUN_ID": "TPUX_CONTAINER_RUN_ID", "TPUX_RUN_HOME": "TPUX_CONTAINER_RUN_HOME"}
"""What marks the processes of a run, and what the same is called in a container."""
LABEL = "tpux.worker"
"""The label of the containers of one worker of a job."""


@dataclass(frozen=True)
class Container:
    """The container of one attempt on one worker.

    Attributes:
        job: the job.
        section: its section `docker`.
        worker: the worker.
        suffix: what its name and label end with, if it is not the one of the attempt.
    """

    job: Job
    section: DockerSection
    worker: Worker
    suffix: str = ""

    @property
    def name(self) -> str:
        """Its name, unique among the jobs of all stores: workers on one machine share a docker daemon."""
        return f"tpux-{self.job.unique_id}-{self.job.attempt}-w{self.worker.index}{self.suffix}"

    @property
    def label(self) -> str:
        """The label of all containers of the job on this worker."""
        return f"{LABEL}={self.job.key}-w{self.worker.index}{self.suffix}"

    def variables(self, command: Command) -> dict[str, str]:
        """Return the variables of the program. What the config gives the program outranks the container's.

        The marks of the run have other names there: by their own, a stop would signal the program beside the container.
        """
        given = {**self.job.job.environment, **self.job.command.env}
        own = {name: value for name, value in self.section.env_vars.items() if name not in given}
        markers = {} if command.beside else _RUN_MARKERS
        return {markers.get(name, name): value for name, value in {**command.env, **own}.items()}

    def run_arguments(self, command: Command, variables: int) -> list[str]:
        """Return the arguments of `scripts.RUN`: none is a secret.

        Args:
            command: the command to run.
            variables: how many variables are sent into the container.
        """
        mark = f"{command.script}.mark"
        program = ("bash", "-c", INIT, "tpux-docker", mark, *command.argv)
        made = (str(len(command.directories)), *command.directories)
        files = (f"--mount={_bind(command.script, 'readonly')}", f"--mount={_bind(mark)}")
        names = (f"--name={self.name}", f"--label={self.label}")
        return [self.name, self.label, str(variables), mark, *made, *self._arguments(command, program, names, files)]

    def enter_arguments(self, command: Command, variables: int) -> list[str]:
        """Return the arguments of `scripts.ENTER`: none is a secret.

        Args:
            command: the command to run beside the program.
            variables: how many variables are sent into the container.
        """
        arguments = self._arguments(command, ("bash", "-c", HOLD))
        made = (str(len(command.directories)), *command.directories)
        return [self.name, str(variables), str(len(command.argv)), *command.argv, *made, *arguments]

    def _arguments(
        self, command: Command, program: tuple[str, ...], names: tuple[str, ...] = (), files: tuple[str, ...] = ()
    ) -> list[str]:
        """Return the arguments of `docker run`.

        Args:
            command: the command to run; its directory, its output directories and those that it names are mounted.
            program: what the container runs.
            names: options that name the container.
            files: options that mount the files of its run.
        """
        home = command.env.get("TPUX_RUN_HOME", "")
        mounts = [_in_home(mount, home) for mount in self.section.mount_dirs]
        targets = {mount.split(":")[1] for mount in mounts}
        directory = None if command.cwd == "." else f"{PurePosixPath(home, command.cwd)}"
        wanted = [directory, *_output_directories(command.env), *command.directories]
        own = [path for path in wanted if path and path not in targets]
        workdir = directory or self.section.workdir
        return [
            *("run", "--interactive", "--rm", "--log-driver=none", *names),
            *_options(self.section.flags),
            *(f"--volume={mount}" for mount in mounts),
            *(f"--mount={_bind(path)}" for path in dict.fromkeys(own)),
            *files,
            *([f"--workdir={workdir}"] if workdir else []),
            self.section.image,
            *program,
        ]


def _options(flags: list[str]) -> list[str]:
    given = [flag for flag in flags if not is_ignored(flag)]
    names = {flag.partition("=")[0] for flag in given}
    return [option for option, replaced_by in _DEFAULTS.items() if names.isdisjoint(replaced_by)] + given


def _in_home(mount: str, home: str) -> str:
    """Return a mount with the worker's home directory in place of `~`."""
    return ":".join(home + part[1:] if part == "~" or part.startswith("~/") else part for part in mount.split(":"))


def _output_directories(variables: Mapping[str, str]) -> list[str]:
    """Return the directories above those of the attempts: earlier ones are there too. A URL is not a directory."""
    paths = [variables.get("TPUX_OUTPUT_DIR", ""), variables.get("TPUX_PREVIOUS_OUTPUT_DIR", "")]
    return [str(PurePosixPath(path).parent) for path in paths if path.startswith("/")]


def _bind(path: str, *options: str) -> str:
    """Return the value of `--mount` for a path that is the same in the container: it is a line of CSV."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(["type=bind", f"source={path}", f"target={path}", *options])
    return line.getvalue()

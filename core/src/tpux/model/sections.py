"""The sections of a config: the base class of plugins' sections, and core's own seven.

A field's docstring is its description in the JSON Schema (`tpux config schema`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import isclass
from pathlib import Path
from types import UnionType
from typing import Annotated, ClassVar, Literal, Union, get_args, get_origin

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from tpux.model.failures import FailureKind
from tpux.model.json import JsonValue
from tpux.model.values import (
    CONTROL_CHARACTER,
    VARIABLE_NAME,
    CollectPattern,
    Duration,
    LocalFile,
    OutputPattern,
    Size,
    Tag,
    WorkerDirectory,
)


@dataclass(frozen=True)
class Bucket:
    """A bucket that the workers will read, for the allocator to check before anything is created.

    Attributes:
        name: its name, without a scheme.
        where: the key that names it, such as `gcsfuse.bucket_name`.
        any_region: it may be in another region than the machines.
    """

    name: str
    where: str
    any_region: bool = False


class Section(BaseModel):
    """Base class of the model that a plugin's `config_section` returns: its section of a config.

    Unknown keys are errors. Give each field a docstring: it is the key's description in the JSON Schema.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_as_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where a number is expected, at any depth: they would be 1 and 0."""
        if info.field_name is None:
            return value
        return _without_booleans(value, cls.model_fields[info.field_name].rebuild_annotation())

    def local_files(self) -> list[Path]:
        """Return the files on this machine that the section names."""
        return list(_paths([value for _, value in self]))

    def changed_sources(self, resolved: Mapping[str, JsonValue]) -> list[str]:  # noqa: ARG002  (for plugins)
        """Return what differs by now from the copy of it that `resolve` has stored, such as the paths of files.

        Called when a job starts again, and when its failure is shown: the user is told to take it with `--sync`. It
        must be quick, and need no network. Files that `local_files` returns are compared by core.

        Since 0.1.

        Args:
            resolved: what `resolve` of this plugin has returned.
        """
        return []

    def warnings(self) -> dict[str, str]:
        """Return the keys that are accepted and have no effect, or another one than a user may expect, each with why.

        Since 0.1.
        """
        return {}

    def needs_finished_by(self) -> list[str]:
        """Return the keys that are set, and have an effect only if `command.finished_by` names the plugin.

        A config with such a key that does not name the plugin is warned about. A detector that implements
        `prepare_command` need not return any: its section without that name is warned about as a whole.

        Since 0.1.
        """
        return []

    def never_finished(self) -> str:
        """Return why this detector can never say that a program has finished, such as an unset key; "" if it can.

        `command.require_finished` is an error where all of `command.finished_by` never can.

        Since 0.1.
        """
        return ""

    def ticks(self) -> bool:
        """Return whether `on_event` of the listener also gets an `events.Tick` every minute, until the job is done.

        Since 0.1.
        """
        return False

    def exposed_keys(self) -> dict[str, str]:
        """Return the keys whose values become arguments or scripts, which others can read on a worker.

        A secret (`${env:NAME}`) in them is an error of the config.

        Since 0.1.

        Returns:
            For each key where a secret belongs instead, such as `give it to the script in env`. `a.b` is the key b of
            a, which is a mapping or a list of mappings.
        """
        return {}

    def secret_keys(self) -> dict[str, str]:
        """Return the keys whose values are secrets; one that is not written as `${env:NAME}` is an error of the config.

        What a config has itself is stored with the job, and stays there after its end.

        Since 0.1.

        Returns:
            For each key the environment variable that the error suggests. `a.b` is the key b of a, `a.0` the first item
            of the list a.
        """
        return {}

    def connects_through(self) -> str | None:
        """Return the transport that this section's plugin connects through, None if none.

        See `tpux.api.machines.connect_through`.

        The section of a transport that wraps another one overrides it: a job that uses the one selects both.
        """
        return None

    def durable_paths(self) -> list[str]:
        """Return directories on the workers that outlive the machines, such as the one where a bucket is mounted.

        `tpux preflight` and `tpux run` warn about spot machines whose `job.output_dir` is not below one. The section
        `tpu` of an allocator whose workers keep all files, or that gives each job storage, returns `["/", "~"]`.
        """
        return []

    def uses_peers(self) -> bool:
        """Return whether the set-up copies from other workers what one of them has built (`peers` of `setup`).

        A transport then lets the workers of a job log in to each other, where they can.

        Since 0.1.
        """
        return False

    def buckets(self) -> list[Bucket]:
        """Return the buckets that the workers will read or write because of this section.

        `preflight` of an allocator of cloud machines reports those that do not exist, or are in another region.

        Since 0.1.
        """
        return []


class _NoNumber:
    """Stands for true or false where a number is expected: no number is made of it."""


def _without_booleans(value: object, annotation: object) -> object:
    """Return a value of a config in which no boolean becomes a number.

    Args:
        value: the value.
        annotation: its type. Models of sections do this themselves.
    """
    types = [*_types_in(annotation)]
    if isinstance(value, bool):
        return _NoNumber() if (int in types or float in types) and bool not in types else value
    if isinstance(value, list):
        inner = [get_args(one) for one in types if get_origin(one) in (list, set, frozenset, tuple, Sequence)]
        is_uniform = len(inner) == 1 and inner[0][1:] in ((), (...,))
        return [_without_booleans(item, inner[0][0]) for item in value] if is_uniform else value
    if not isinstance(value, dict):
        return value
    values = [get_args(one)[1] for one in types if get_origin(one) in (dict, Mapping)]
    if len(values) == 1:
        return {key: _without_booleans(item, values[0]) for key, item in value.items()}
    models = [one for one in types if isclass(one) and issubclass(one, BaseModel) and not issubclass(one, Section)]
    if len(models) != 1:
        return value
    fields = {key: field for name, field in models[0].model_fields.items() for key in names_of(name, field)}
    return {
        key: _without_booleans(item, fields[key].rebuild_annotation()) if key in fields else item
        for key, item in value.items()
    }


def _types_in(annotation: object) -> Iterator[object]:
    """Yield the types of a union, also of an annotated one; without a float that is made of other values."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        parts = get_args(annotation)
        is_made = any(isinstance(part, BeforeValidator) for part in parts)
        yield from (one for part in parts for one in _types_in(part) if not (is_made and one is float))
    else:
        yield annotation


def _paths(value: object) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Section):
        yield from value.local_files()
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths(item)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, (str, int)) and not isinstance(value, bool) else value


class GroupOfJobs(BaseModel):
    """Jobs of which a limited number runs at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern="^[A-Za-z0-9][-A-Za-z0-9_.]{0,99}$")]
    """The group's name, the same in each of its jobs."""
    max_running: int = Field(1, ge=1)
    """The most jobs of the group that have left pending and have not ended, for this job to start."""
    priority: int = 0
    """Jobs of the group with a higher number start first, of several those with the lowest ids."""


class JobSection(Section):
    """The job as a whole."""

    name: str = ""
    """The job's name; by default the config's file name."""
    env_type: str | None = None
    """The environment that the command runs in: docker, conda, venv, or another environment plugin."""
    loop: bool = False
    """Resume the job whenever it ends, after a success and after every kind of failure, with a delay that grows."""
    remote_user: str | None = None
    """The user name on the workers; by default the local one."""
    environment: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Variables of the program's environment, such as TPU_PREFIX: ${tpu.name}."""
    worker_num: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern="^[A-Za-z0-9][-A-Za-z0-9]*$")] | None = None
    """A suffix of the names of the job and of its TPU, to tell jobs of one config apart; auto is the job's id."""
    queue: dict[str, object] | None = None
    """jobman's task queue: ignored, since a job runs one command."""
    rule: str | None = None
    """What to do after a failure: pre, resume, reapply, rerun, pass, or a rule plugin; `tpux rules` lists them."""
    max_restarts: dict[FailureKind, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """The maximum number of consecutive restarts for each kind of failure."""
    after: Annotated[list[Annotated[int, Field(ge=1)]], BeforeValidator(_as_list)] = Field(default_factory=list)
    """The ids of jobs that must have succeeded before this one starts: until then it is pending."""
    group: GroupOfJobs | None = None
    """The group of jobs that it belongs to, of which `max_running` run at once, those with the lowest ids first."""
    tags: Annotated[list[Tag], BeforeValidator(_as_list)] = Field(default_factory=list)
    """Words that select the job, such as with `tpux list --tag`; `tpux tag` changes them later."""
    share: bool = False
    """After the job's end, give the machines that it keeps for a resume to another job that waits for them, if its
    allocator can tell (pool)."""
    stalled_after: Duration | None = None
    """End an attempt as stalled if no worker has written output for this long; null, the default, turns that off."""
    output_dir: WorkerDirectory | None = None
    """A directory on the workers, such as a mounted bucket, or a URL; each attempt gets a TPUX_OUTPUT_DIR below it.

    The job's name, id and a random token are appended, so that jobs may share it, unless it contains ${job.id}."""

    @field_validator("name")
    @classmethod
    def _can_be_typed(cls, name: str, info: ValidationInfo) -> str:
        is_new = not isinstance(info.context, dict) or info.context.get("check_files", True)
        if is_new and CONTROL_CHARACTER.search(name):
            raise ValueError("control characters cannot be part of a job's name")
        return name

    @field_validator("stalled_after")
    @classmethod
    def _ends_no_program_at_once(cls, seconds: float | None) -> float | None:
        if seconds == 0:
            raise ValueError("0 would end every program at once: null, or no such line, turns it off")
        return seconds

    def variables(self) -> dict[str, str]:
        """Return `environment` as texts, with their references."""
        given = self.environment.items()
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given}

    def numbered(self, name: str) -> str:
        """Return a name of the config with the suffix that `worker_num` gives it."""
        return name if self.worker_num in {None, "auto"} else f"{name}-{self.worker_num}"

    def warnings(self) -> dict[str, str]:
        """Return which keys have no effect."""
        found = {}
        if self.queue is not None and self.queue.get("enabled") is not False:
            found["queue"] = "this job runs its own command; a job for each task of a file: `tpux tasks run tasks.yaml`"
        if self.loop and self.max_restarts:
            found["max_restarts"] = "once its program has run, a job with job.loop is resumed after every failure"
        return found


class TpuSection(Section):
    """The machines."""

    transport: ClassVar[str] = ""
    """The plugin that connects to the allocator's machines, known before there are any; "" if it varies."""
    transferable: ClassVar[bool] = False
    """Whether a job can take over another's machines: the allocator observes `ProvisionRequest.previous_owners`."""

    allocation_mode: Annotated[str, Field(min_length=1)] = "local"
    """The plugin that allocates the machines: local, tpu-vm, queued-resources, hosts, or another allocator."""
    accelerator: str | list[str] | None = None
    """The accelerator's type and size, such as v4-32; a list is tried in order."""
    name: str | None = None
    """The name of the TPU; by default made from the job's name and id."""
    pricing: Literal["spot", "preemptible", "ondemand"] = "ondemand"
    """The pricing model of the machines."""
    node_count: int = Field(1, ge=1)
    """The number of slices; more than one is a multislice."""
    provision_timeout: Duration | None = None
    """How long to wait for machines before the job fails; by default without limit."""
    release: Literal["created", "always", "never"] = "created"
    """Which machines to release when the job has ended: those that tpux created, all, or none."""
    keep_on_failure: Duration | None = None
    """How long to keep a failed job's machines, for a resume; by default 10 minutes if on demand, else an hour."""
    keep_on_stop: Duration = 3600.0
    """How long to keep a stopped job's machines, for a resume."""

    @field_validator("pricing", mode="before")
    @classmethod
    def _other_spelling(cls, pricing: object) -> object:
        return (
            "ondemand" if isinstance(pricing, str) and re.sub("[-_ ]", "", pricing).lower() == "ondemand" else pricing
        )

    def count_workers(self) -> int | None:
        """Return the number of workers of all slices, None if it is not known before provisioning.

        Raises:
            TpuxError: the accelerator is not valid; core reports it at `tpu.accelerator`.
        """
        return None

    def first_zone(self) -> str | None:
        """Return the zone to request machines in first, None if the allocator has no zones."""
        return None


class SetupSection(Section):
    """The preparation of the workers."""

    modules: list[str] | None = None
    """The modules, in order; by default ssh, code, gcsfuse and script if present, then the environment."""
    tries: int = Field(3, ge=1)
    """How many times to try a module's setup on a worker before the job fails."""


WorkerNumber = Annotated[int, Field(ge=0, strict=True)]


def _variable_value(value: object) -> object:
    # Not a boolean: programs differ in whether that is "1", "true" or "True".
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


class CommandSection(Section):
    """The program."""

    cmd: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("cmd", "run"))]
    """The shell script to run on each selected worker (`run` is an alias)."""
    args: dict[Annotated[str, Field(pattern=r"^[^\s=-][^\s=]*$")], object] = Field(default_factory=dict)
    """Arguments of the program by name, such as lr: 3e-4, which key=value on the command line changes.

    They are appended to a script that is one command; any other has ${args} where they belong."""
    args_style: Literal["--{key}={value}", "--{key} {value}", "{key}={value}", "json"] = "--{key}={value}"
    """The form in which the program gets them; json is a file, whose path is in TPUX_ARGS_FILE."""
    argv: list[str] = Field(default_factory=list)
    """Further words for the program, after those of args, as they are: what follows -- on the command line."""
    env: dict[str, Annotated[str, BeforeValidator(_variable_value)]] = Field(default_factory=dict)
    """Environment variables of the program, in addition to those of tpux."""
    workers: WorkerNumber | list[WorkerNumber] | Literal["all"] = "all"
    """The workers that run it: a number, a list of numbers, or "all"."""
    finished_by: list[str] = Field(default_factory=list)
    """Detectors, such as wandb or log, that decide whether the program has finished, also if it crashed after that."""
    require_finished: bool = False
    """Whether the exit code 0 without that word is a failure of the kind incomplete."""
    grace_period: Duration = 30.0
    """The time between SIGTERM and SIGKILL when the program is stopped."""
    allow_left: list[str] = Field(default_factory=list)
    """Names of programs that may run on after the command has exited with 0, beside helpers such as wandb-core."""
    left_timeout: Duration = 86400.0
    """How long the machines are held for other processes that run on after the command has exited with 0."""
    collect: list[CollectPattern] = Field(default_factory=list)
    """Glob patterns of files that are fetched from all workers of the program into the job's directory, when an attempt
    ends and when the job is stopped.

    They are relative to the directory in which the program starts, absolute, or begin with ~/; a directory stands for
    all files in it. `tpux show` names the copies and what was not fetched, `tpux delete` deletes them."""
    collect_limit: Size = 2**30
    """The most bytes that are fetched after an attempt, such as 500MB; `tpux show` names the files that exceed it."""
    checkpoint: OutputPattern | None = None
    """A glob pattern below the output directory that matches a saved checkpoint; a resume starts from the last one."""
    resume_cmd: str | None = None
    """The script to run instead of cmd in a resumed attempt."""
    resume_args: str | None = None
    """Arguments of the script in a resumed attempt, such as --load=${job.previous_output_dir}.

    They are appended to a script that is one command; any other has ${resume_args} or $TPUX_RESUME_ARGS where they
    belong."""
    stage_args: str | None = None
    """Arguments of the script once the job has been resumed, such as --stage=${job.stage}: appended after resume_args,
    or in the place of ${stage_args}; also in $TPUX_RESUME_ARGS."""

    def exposed_keys(self) -> dict[str, str]:
        """Return the arguments of the program."""
        hint = "give it to the program in command.env"
        return {"args": hint, "argv": hint}

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not VARIABLE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a variable")
            if name.startswith("TPUX_"):
                raise ValueError(f"{name}: variables that begin with TPUX_ are set by tpux")
            if "\0" in value:
                raise ValueError(f"{name}: a variable cannot contain a NUL")
        return env

    @model_validator(mode="before")
    @classmethod
    def _one_command(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("cmd") is not None and data.get("run") is not None:
            raise ValueError("cmd and run are the same key: set only one of them")
        return data

    @model_validator(mode="after")
    def _finished_by_someone(self) -> CommandSection:
        if self.require_finished and not self.finished_by:
            raise ValueError("require_finished needs finished_by, the detectors that report it")
        return self


class WatchSection(Section):
    """The monitoring of a running job."""

    lost_after: Duration = 600.0
    """How long a worker may be unreachable, while the cloud API responds, before it counts as lost."""
    verdict_grace: Duration = 45.0
    """How long to check for a preemption before a failed attempt counts as the program's failure, or one that got a
    signal as a success, only with machines that announce preemptions; and how long the cloud must say that machines are
    lost on which the program still runs."""
    straggler_grace: Duration = 30.0
    """How long the other workers may continue after one has failed, or all may be silent after the program finished."""
    poll_every: Annotated[Duration, Field(ge=0.05)] = 1.0
    """The maximum time between two polls of a running command, 50 ms or more."""
    compile_timeout: Duration = 3600.0
    """How long the program may be silent after it wrote that it compiles, if that is longer than job.stalled_after."""
    resources_every: Annotated[Duration, Field(ge=1)] = 180.0
    """The time between two examinations of a worker by monitors, such as of its memory and disks: 1 s or more."""
    checkpoint_expected: Annotated[Duration, Field(ge=1)] | None = 3600.0
    """The time after which a program is reported that has saved a checkpoint (command.checkpoint) before, and no new
    one since, 1 s or more; null turns that off. The plugin storage looks for them."""


class SolveSection(Section):
    """The repair of workers by solvers, before a next attempt and with `tpux solve`."""

    force: bool = False
    """Whether solvers also end processes that tpux did not start, if these hold the accelerator."""


class PluginsSection(Section):
    """The plugins that a job has beside those that are installed, and those that it does without."""

    files: list[LocalFile] = Field(default_factory=list)
    """Python files, each a plugin that is not installed, whose name is that of the file: `[./my_rule.py]`."""
    disabled: list[str] = Field(default_factory=list)
    """Detectors, solvers and listeners that are not called for this job; all others that are installed are."""


CORE_SECTIONS: dict[str, type[Section]] = {
    "job": JobSection,
    "tpu": TpuSection,
    "setup": SetupSection,
    "command": CommandSection,
    "watch": WatchSection,
    "solve": SolveSection,
    "plugins": PluginsSection,
}


def names_of(field_name: str, field: FieldInfo) -> list[str]:
    """Return the keys that set a field: its name and its aliases."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [field_name, *(choice for choice in choices if isinstance(choice, str) and choice != field_name)]


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return all keys that set a field of the model."""
    return [key for name, field in model.model_fields.items() for key in names_of(name, field)]

"""The sections of a config: the base that every plugin's section has, and core's own five.

The docstring of each field is its sentence in the schema (`tpux config schema`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

from tpux.plugin.failures import FailureKind

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(value: object) -> object:
    """`4s`, `1.5h`, `2m`, `1d` or a bare number, as seconds.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", value.strip())
        if match is None:
            raise ValueError("write a duration as a number of seconds or as 30s, 5m, 2h, 1d")
        return float(match[1]) * _UNITS[match[2]]
    return value


Duration = Annotated[
    float,
    BeforeValidator(seconds),
    Field(ge=0),
    WithJsonSchema({"type": ["number", "string"], "pattern": r"^\d+(\.\d+)?\s*[smhd]$"}),
]
"""A duration: a number of seconds, or `30s`, `5m`, `2h`, `1d`."""


def local_file(value: object, info: ValidationInfo) -> object:
    """A path on this machine, counted from the config's directory, that must be readable.

    Core copies the file beside the job's config, so that a job does not change under its feet.
    """
    if not isinstance(value, (str, Path)):
        return value
    context = info.context if isinstance(info.context, dict) else {}
    path = Path(context.get("directory", ".")) / Path(value).expanduser()
    path = context.get("copies", {}).get(path, path)
    if context.get("check_files", True) and not path.is_file():
        raise ValueError(f"there is no file {path}")
    if isinstance(files := context.get("files"), list):
        files.append(path)
    return path


LocalFile = Annotated[Path, BeforeValidator(local_file)]
"""A file on this machine that a config names; relative paths count from the config's directory."""


class Section(BaseModel):
    """What a plugin's `config_section` gives: the model of its section of a config.

    Unknown keys are mistakes. Give each field a docstring: it is the key's sentence in the schema.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, populate_by_name=True, strict=False
    )

    def local_files(self) -> list[Path]:
        """The files on this machine that the section names."""
        return list(_paths([value for _, value in self]))


def _paths(value: object) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    elif isinstance(value, Section):
        yield from value.local_files()
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths(item)


class JobSection(Section):
    """The job as a whole."""

    name: str = ""
    """What the job is called in lists; the config's file name where it is not given."""
    env_type: str | None = None
    """The environment that the command runs in: docker, conda, venv, or another plugin's word."""
    loop: bool = False
    """Resume after every end, success too."""
    remote_user: str | None = None
    """The user to log in to the workers as; the local one where it is not given."""
    worker_num: int | None = Field(None, ge=1)
    """How many workers there must be; another number is an error before anything runs."""
    rule: str | None = None
    """What follows which failure: pre, resume, reapply, rerun, pass, or a plugin's word; `tpux rules` shows them."""
    max_restarts: dict[FailureKind, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    """How many restarts each kind of failure may cost in a row, by kind."""
    stalled_after: Duration | None = None
    """End an attempt whose workers have written nothing for this long, and judge it stalled."""
    output_dir: str | None = None
    """A directory on the workers (a mounted bucket, say) below which each attempt has its TPUX_OUTPUT_DIR."""


class TpuSection(Section):
    """The machines."""

    allocation_mode: str = "local"
    """Who gets the machines: local, tpu-vm, queued-resources, hosts, or another plugin's word."""
    accelerator: str | list[str] | None = None
    """The accelerator's type and size, such as v4-32; a list is tried in its order."""
    name: str | None = None
    """What the TPU is called; made from the job's name and id where it is not given."""
    zone: str | list[str] | None = None
    """The zone, such as us-central2-b; a list is tried in its order."""
    version: str | None = None
    """The runtime version (the VM image); one per TPU generation where it is not given."""
    pricing: Literal["spot", "preemptible", "ondemand"] = "ondemand"
    """How the machines are paid for."""
    startup_script: LocalFile | None = None
    """A script that the VMs run when they boot."""
    tags: list[str] = Field(default_factory=list)
    """Network tags of the VMs."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the TPU, beside those that tpux sets."""
    metadata: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Metadata of the VMs."""
    flags: list[str] = Field(default_factory=list)
    """Flags of `gcloud compute tpus`, as jobman's configs carry them."""
    project: str | None = None
    """The Google Cloud project; the environment's or gcloud's own where it is not given."""
    network: str | None = None
    """The VPC network."""
    subnetwork: str | None = None
    """The subnetwork."""
    service_account: str | None = None
    """The service account of the VMs."""
    internal_ips: bool = False
    """Give the VMs no external address."""
    reservation: str | None = None
    """The reservation to take the capacity from."""
    node_count: int = Field(1, ge=1)
    """How many slices; more than one is a multislice."""
    valid_until: Duration | None = None
    """Give up a queued request that was not served for this long."""
    provision_timeout: Duration | None = None
    """Fail the job when it got no machines for this long; without it, it waits."""
    zone_patience: Duration = 600.0
    """How long a request waits in one zone before the next of the list is tried."""
    release: Literal["created", "always", "never"] = "created"
    """Which machines are given back when the job has ended: those that tpux made, all, or none."""
    keep_on_failure: Duration = 3600.0
    """How long a failed job's machines wait for a resume or a look by hand."""
    keep_on_stop: Duration = 3600.0
    """How long a stopped job's machines wait for a resume."""
    endpoint: str | None = None
    """The address of the TPU API, such as an emulator's."""


class SetupSection(Section):
    """What prepares the workers."""

    modules: list[str] | None = None
    """The modules in their order; without it ssh, gcsfuse and the environment, where their sections are there."""
    tries: int = Field(3, ge=1)
    """How often a module's set-up is tried on a worker before the job fails."""


WorkerNumber = Annotated[int, Field(ge=0, strict=True)]


class CommandSection(Section):
    """The program."""

    cmd: Annotated[str, Field(min_length=1, validation_alias=AliasChoices("cmd", "run"))]
    """The shell script that every chosen worker runs (`run` is the same key)."""
    workers: WorkerNumber | list[WorkerNumber] | Literal["all"] = "all"
    """Which workers run it: a number, a list of numbers, or "all"."""
    grace_period: Duration = 30.0
    """How long a program may take to end after SIGTERM before it gets SIGKILL."""
    checkpoint: str | None = None
    """A pattern below the output directory that matches once a checkpoint is saved: a resume starts from the last."""
    resume_cmd: str | None = None
    """The script for a resumed attempt, in the place of cmd."""
    resume_args: str | None = None
    """What is added to the end of the script in a resumed attempt, such as --load=${job.previous_output_dir}."""
    stage_args: str | None = None
    """What is added to the end of the script once the job was resumed, such as --stage=${job.stage}."""

    @model_validator(mode="before")
    @classmethod
    def _one_command(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("cmd") is not None and data.get("run") is not None:
            raise ValueError("cmd and run are two words for the same key: give one of them")
        return data


class WatchSection(Section):
    """How a running job is watched."""

    lost_after: Duration = 600.0
    """How long a worker may be out of reach, the cloud answering, before it counts as lost."""
    straggler_grace: Duration = 30.0
    """How long the other workers may go on after one has failed."""
    poll_every: Duration = 1.0
    """The longest pause between two looks at a running command."""


CORE_SECTIONS: dict[str, type[Section]] = {
    "job": JobSection,
    "tpu": TpuSection,
    "setup": SetupSection,
    "command": CommandSection,
    "watch": WatchSection,
}


def names_of(field_name: str, field: FieldInfo) -> list[str]:
    """The keys that set a field: its name and its aliases."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [field_name, *(choice for choice in choices if isinstance(choice, str) and choice != field_name)]

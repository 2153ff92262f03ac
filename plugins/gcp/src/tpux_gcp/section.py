"""The section `tpu` of a config for TPUs on Google Cloud."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, ValidationInfo

from tpux import TpuSection
from tpux.fields import Accelerator, Duration, LocalFile
from tpux.helpers import workers_of

_LOCAL_FILE: TypeAdapter[Path] = TypeAdapter(LocalFile)


def copied_files(flags: list[str], info: ValidationInfo) -> list[str]:
    """Return `tpu.flags` with the file of `--metadata-from-file` as core treats each `LocalFile` of a config.

    When a job is created the file must exist, and core copies it; from then on the copy's path stands in its place.

    Raises:
        ValueError: the file does not exist, or the flags cannot be split into words.
    """

    def path(match: re.Match[str]) -> str:
        try:
            return str(_LOCAL_FILE.validate_python(match.group(), context=info.context))
        except ValidationError as error:
            raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error

    words = [word for flag in flags for word in shlex.split(flag)]
    flag = "--metadata-from-file"
    if not any(word.partition("=")[0] == flag for word in words):
        return flags
    with_values = [
        f"{flag}={word}" if previous == flag else word
        for previous, word in zip(["", *words], words, strict=False)
        if word != flag
    ]
    return [
        shlex.quote(re.sub("(?<=startup-script=)[^,]+", path, word) if word.startswith(f"{flag}=") else word)
        for word in with_values
    ]


class GcpTpuSection(TpuSection):
    """TPU VMs on Google Cloud."""

    transport: ClassVar[str] = "ssh"
    transferable: ClassVar[bool] = True

    accelerator: Accelerator | list[Accelerator] | None = None
    """The accelerator's type and size, such as v4-32; a list is tried in order, each in all zones."""
    topology: str | None = None
    """The topology of each slice, such as 2x2x4, where the accelerator allows several; by default the API's choice."""
    zone: str | list[str] | None = None
    """The zone, such as us-central2-b; a list is tried in order. By default the environment's or gcloud's zone."""
    version: str | None = None
    """The runtime version (the VM image); by default the one for the TPU generation."""
    project: str | None = None
    """The Google Cloud project; by default the environment's or gcloud's."""
    network: str | None = None
    """The VPC network."""
    subnetwork: str | None = None
    """The subnetwork."""
    internal_ips: bool = False
    """Create the VMs without external IP addresses."""
    service_account: str | None = None
    """The service account of the VMs."""
    startup_script: LocalFile | None = None
    """A script that the VMs run when they boot."""
    tags: list[str] = Field(default_factory=list)
    """Network tags of the VMs."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the TPU, in addition to those that tpux sets."""
    metadata: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Metadata of the VMs."""
    flags: Annotated[list[str], AfterValidator(copied_files)] = Field(default_factory=list)
    """Flags of `gcloud compute tpus`, as in jobman's configs."""
    reservation: str | None = None
    """The reservation to use: its name, projects/P/locations/ZONE/reservations/NAME, or another project's
    projects/OWNER/reservations/NAME; `-` is any."""
    valid_until: Duration | None = None
    """Cancel a queued request that has not been served after this time."""
    zone_patience: Duration = 600.0
    """How long a request may wait in one zone before the next zone of the list is tried."""
    endpoint: str | None = None
    """The address of the TPU API, such as an emulator's."""

    def count_workers(self) -> int | None:
        """Return the number of workers; of a list of accelerators, with the first one."""
        if not self.accelerator:
            return None
        first = self.accelerator if isinstance(self.accelerator, str) else self.accelerator[0]
        return workers_of(first) * self.node_count

    def first_zone(self) -> str | None:
        """Return the first zone of the config."""
        return self.zone if not isinstance(self.zone, list) else next(iter(self.zone), None)

    def exposed_keys(self) -> dict[str, str]:
        """Return the keys that become part of the TPU's description, which all users of its VMs can read."""
        hint = "give it to the program in command.env, or to a set-up script in script.env"
        return dict.fromkeys(["metadata", "startup_script", "flags", "labels", "tags"], hint)

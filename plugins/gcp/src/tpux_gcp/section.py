"""The section `tpu` of a config for TPUs on Google Cloud, and gcloud's flags in it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, cast

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, ValidationInfo, model_validator

from tpux import TpuSection
from tpux.fields import Accelerator, Duration, LocalFile, parse_duration, workers_of
from tpux_gcp.disks import DataDisk, Disk
from tpux_gcp.errors import InvalidConfigError
from tpux_gcp.zones import full_zone

Zone = Annotated[str, AfterValidator(full_zone)]
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

    def copied(word: str) -> str:
        name, _, value = word.partition("=")
        delimiter, parts = _split(value)
        parts = [re.sub("(?<=^startup-script=).+", path, part) for part in parts]
        return f"{name}={delimiter if delimiter == ',' else f'^{delimiter}^'}{delimiter.join(parts)}"

    words = [word for flag in flags for word in shlex.split(flag)]
    flag = "--metadata-from-file"
    if not any(word.partition("=")[0] == flag for word in words):
        return flags
    with_values = [
        f"{flag}={word}" if previous == flag else word
        for previous, word in zip(["", *words], words, strict=False)
        if word != flag
    ]
    return [shlex.quote(copied(word) if word.startswith(f"{flag}=") else word) for word in with_values]


class GcpTpuSection(TpuSection):
    """TPU VMs on Google Cloud."""

    transport: ClassVar[str] = "ssh"
    transferable: ClassVar[bool] = True

    accelerator: Accelerator | list[Accelerator] | None = None
    """The accelerator's type and size, such as v4-32; a list is tried in order, each in all zones."""
    topology: str | None = None
    """The topology of each slice, such as 2x2x4, where the accelerator allows several; by default the API's choice."""
    zone: Zone | list[Zone] | None = None
    """The zone, such as us-central2-b or usc2b; a list is tried in order. By default the environment's or gcloud's."""
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
    scopes: list[str] = Field(default_factory=list)
    """OAuth scopes of the service account on the VMs, as URLs; by default the API's choice, which includes
    cloud-platform."""
    secure_boot: bool = False
    """Create the VMs as Shielded VMs with secure boot."""
    description: str | None = None
    """A text about the TPU, for people."""
    data_disks: list[Disk | DataDisk] = Field(default_factory=list)
    """Existing disks, attached to each TPU that is created: what is on them outlives a preemption. A disk's name, or
    source and mode."""
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
    autocheckpoint: bool = False
    """Google sends SIGTERM to the program before a maintenance, and waits up to 5 minutes until it has ended (a preview
    feature of Cloud TPU, for v2 to v5e)."""
    flex_start: bool = False
    """Request TPUs of Flex-start, for at most tpu.max_run_duration (a preview feature of queued resources)."""
    max_run_duration: Duration | None = None
    """How long TPUs of Flex-start run, at most 7d; then Google takes them away, and they are requested again."""
    maintenance_notice: Duration = 300.0
    """How long before a planned maintenance the programs get the notice, as of a preemption, to save their work."""
    valid_until: Duration | None = None
    """Cancel a queued request that has not been served after this time."""
    zone_patience: Duration = 600.0
    """How long a request may wait in one zone before the next zone of the list is tried."""
    auth_timeout: Duration = 86400.0
    """How long a job without machines waits for a login that was valid and has expired, until it is renewed."""
    endpoint: str | None = None
    """The address of the TPU API, such as an emulator's."""
    release_if_unattended: Duration | None = None
    """Let a TPU that this job creates delete itself, with its VMs' service account, once nobody has been logged in to
    it and no program of tpux has run on it for this long; by default a day if on demand, else never; 0 is never."""
    existing: bool = False
    """Use the TPU that is called tpu.name, and fail if there is none, rather than create one."""

    @model_validator(mode="after")
    def _existing_has_a_name(self) -> GcpTpuSection:
        if self.existing and not self.name:
            raise ValueError("tpu.existing needs tpu.name, the TPU to use")
        return self

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
        return dict.fromkeys(["metadata", "startup_script", "flags", "labels", "tags", "description"], hint)


def apply_flags(tpu: TpuSection) -> GcpTpuSection:
    """Return the `tpu` section with its `flags` (of `gcloud compute tpus`, from jobman's configs) as keys.

    Raises:
        InvalidConfigError: a flag has no key, its value is invalid, or it contradicts a key.
    """
    update: Update = {}
    section = cast("GcpTpuSection", tpu)
    for name, value in _split_flags([word for flag in section.flags for word in shlex.split(flag)]):
        for key, parsed in _parse_flag(name, value).items():
            update[key] = [*cast("list[object]", update.get(key, [])), *parsed] if isinstance(parsed, list) else parsed
    for key, value_of_flag in update.items():
        configured = getattr(section, key)
        default = type(section).model_fields[key].get_default(call_default_factory=True)
        if configured not in (default, value_of_flag):
            raise InvalidConfigError(
                f"tpu.flags sets {value_of_flag!r}, but tpu.{key} is {configured!r}", f"keep only tpu.{key}"
            )
    return section.model_copy(update=update) if update else section


Update = dict[str, object]


def _split(value: str) -> tuple[str, list[str]]:
    """Return the delimiter of a list and its items, as gcloud reads them: `a,b`, or `^:^a,b:c` with another one."""
    if value.startswith("^") and (end := value.find("^", 2)) > 0:
        return (delimiter := value[1:end]), value[end + 1 :].split(delimiter)
    return ",", value.split(",")


def _items(value: str) -> list[str]:
    return [item for item in _split(value)[1] if item]


def _pairs(value: str) -> dict[str, str]:
    """Parse `a=b,c=d` as gcloud does."""
    return {key: text for key, _, text in (item.partition("=") for item in _items(value))}


def _data_disk(value: str) -> Update:
    pairs = _pairs(value)
    if "source" not in pairs or pairs.keys() - {"source", "mode"}:
        raise InvalidConfigError(f"--data-disk={value} in tpu.flags needs source=DISK, and may have mode=MODE")
    try:
        return {"data_disks": [DataDisk.model_validate(pairs)]}
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error


_PROVISIONING_MODELS: dict[str, Update] = {
    "standard": {"pricing": "ondemand"},
    "spot": {"pricing": "spot"},
    "flex-start": {"flex_start": True},
}


def _provisioning_model(value: str) -> Update:
    known = _PROVISIONING_MODELS.get(value.lower().replace("_", "-"))
    if known is None:
        raise ValueError(f"is none of {', '.join(_PROVISIONING_MODELS)}")
    return known


def _startup_script(value: str) -> Update:
    files = _pairs(value)
    if set(files) != {"startup-script"}:
        raise InvalidConfigError(
            f"--metadata-from-file={value} in tpu.flags: only startup-script is supported", "use tpu.metadata"
        )
    return {"startup_script": Path(files["startup-script"])}


_WITHOUT_VALUE: dict[str, Update] = {
    "spot": {"pricing": "spot"},
    "preemptible": {"pricing": "preemptible"},
    "best-effort": {"pricing": "preemptible"},
    "internal-ips": {"internal_ips": True},
    "reserved": {"reservation": "-"},
    "autocheckpoint-enabled": {"autocheckpoint": True},
    "shielded-secure-boot": {"secure_boot": True},
    # They change gcloud's own output and waiting, nothing of the TPU.
    "async": {}, "quiet": {}, "q": {}, "guaranteed": {},
}  # fmt: skip
_WITH_VALUE: dict[str, Callable[[str], Update]] = {
    "accelerator-type": lambda value: {"accelerator": re.sub("^v5e-", "v5litepod-", value)},
    "data-disk": _data_disk,
    "description": lambda value: {"description": value},
    "labels": lambda value: {"labels": _pairs(value)},
    "max-run-duration": lambda value: {"max_run_duration": parse_duration(value)},
    "metadata": lambda value: {"metadata": _pairs(value)},
    "metadata-from-file": _startup_script,
    "network": lambda value: {"network": value},
    "node-count": lambda value: {"node_count": int(value)},
    "project": lambda value: {"project": value},
    "reservation": lambda value: {"reservation": value},
    "runtime-version": lambda value: {"version": value},
    "provisioning-model": _provisioning_model,
    "scopes": lambda value: {"scopes": _items(value)},
    "service-account": lambda value: {"service_account": value},
    "subnetwork": lambda value: {"subnetwork": value},
    "topology": lambda value: {"topology": value},
    "tags": lambda value: {"tags": _items(value)},
    "valid-until-duration": lambda value: {"valid_until": parse_duration(value)},
    "version": lambda value: {"version": value},
    "zone": lambda value: {"zone": full_zone(value)},
}
_KEY_INSTEAD = {
    "node-id": "tpu.name", "node-prefix": "tpu.name", "valid-until-time": "tpu.valid_until", "type": "tpu.accelerator",
}  # fmt: skip


def _split_flags(words: list[str]) -> Iterator[tuple[str, str | None]]:
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            raise InvalidConfigError(f"{word!r} in tpu.flags is not a flag")
        name, sign, value = word.lstrip("-").partition("=")
        if sign:
            yield name, value
        elif name not in _WITHOUT_VALUE and words and not words[0].startswith("-"):
            yield name, words.pop(0)
        else:
            yield name, None


def _parse_flag(name: str, value: str | None) -> Update:
    if name in _WITHOUT_VALUE and value is None:
        return _WITHOUT_VALUE[name]
    if name in _WITH_VALUE and value is not None:
        try:
            return _WITH_VALUE[name](value)
        except ValueError as error:
            raise InvalidConfigError(f"--{name}={value} in tpu.flags: {error}") from error
    if name in _WITH_VALUE or name in _WITHOUT_VALUE:
        raise InvalidConfigError(f"--{name} in tpu.flags {'needs a' if name in _WITH_VALUE else 'takes no'} value")
    key = _KEY_INSTEAD.get(name)
    known = ", ".join(f"--{flag}" for flag in sorted({*_WITHOUT_VALUE, *_WITH_VALUE}) if flag != "q")
    raise InvalidConfigError(
        f"unsupported flag --{name} in tpu.flags", f"use {key}" if key else f"supported are {known}"
    )

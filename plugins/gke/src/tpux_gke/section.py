"""The config section `tpu` of the allocator `gke`, and the table of what GKE calls each TPU type."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, Field, model_validator

from tpux import TpuSection, TpuxError
from tpux.fields import Duration

Capacity = Literal["on-demand", "spot", "reservation", "flex-start"]
_PRICING = {"on-demand": "ondemand", "reservation": "ondemand", "spot": "spot", "flex-start": "preemptible"}
_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_CUBES = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
    1024: "8x8x16",
    2048: "8x16x16",
    4096: "16x16x16",
}


@dataclass(frozen=True)
class _Kind:
    """What GKE calls a TPU generation.

    Attributes:
        label: the value of cloud.google.com/gke-tpu-accelerator.
        cores: cores per chip as the number in tpux's name counts them; 1 where it counts chips.
        topologies: the usual topology of each number of chips.
    """

    label: str
    cores: int
    topologies: Mapping[int, str]


KINDS = {
    "v4": _Kind("tpu-v4-podslice", 2, _CUBES),
    "v5p": _Kind("tpu-v5p-slice", 2, _CUBES),
    "v5litepod": _Kind("tpu-v5-lite-podslice", 1, _FLAT),
    "v6e": _Kind("tpu-v6e-slice", 1, _FLAT),
    "tpu7x": _Kind("tpu7x", 2, {1: "1x1x1", **_CUBES}),
}
_LASTING = frozenset({"persistentVolumeClaim", "nfs", "csi", "gcePersistentDisk", "cephfs", "glusterfs", "iscsi"})
"""The kinds of volumes that are not of a pod or a node."""
_FLEETING = ("secrets-store", "cert-manager", "spiffe")
"""In the names of CSI drivers that bring secrets or certificates."""
HOME = "/tpux/home"
_OWN_VOLUMES: Mapping[str, dict[str, object]] = {
    HOME: {"emptyDir": {}},
    "/dev/shm": {"emptyDir": {"medium": "Memory"}},  # noqa: S108  (in the pod)
}
"""What every pod has, by mount path."""
_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]


@dataclass(frozen=True)
class Slice:
    """One slice, as GKE selects it.

    Attributes:
        label: the value of cloud.google.com/gke-tpu-accelerator.
        topology: the value of cloud.google.com/gke-tpu-topology.
        hosts: how many pods it has.
        chips: how many chips each of them has.
    """

    label: str
    topology: str
    hosts: int
    chips: int


def slice_of(accelerator: str, topology: str | None, chips_per_host: int | None = None) -> Slice:
    """Return what GKE calls a slice.

    Args:
        accelerator: tpux's name, such as v5p-32.
        topology: the config's topology, None for the usual one.
        chips_per_host: the config's, None for the usual number.

    Raises:
        TpuxError: there is no such slice.
    """
    match = re.fullmatch(r"([a-z]\w*?)-(\d+)", re.sub("^v5e-", "v5litepod-", accelerator))
    kind = KINDS.get(match[1]) if match else None
    if match is None or kind is None:
        raise TpuxError(f"unknown accelerator {accelerator!r}", hint=f"known are {', '.join(KINDS)}, each with -N")
    size = int(match[2])
    chips = size // kind.cores
    if size % kind.cores or not chips:
        raise TpuxError(f"{match[1]} has no size {size}", hint=f"the number counts cores, {kind.cores} a chip")
    chosen = topology or kind.topologies.get(chips)
    if chosen is None:
        hint = "set tpu.topology, such as 4x4x12" if kind.topologies is not _FLAT else f"sizes: {[*_FLAT]}"
        raise TpuxError(f"{accelerator} has {chips} chips, for which there is no usual topology", hint=hint)
    if math.prod(map(int, chosen.split("x"))) != chips:
        raise TpuxError(f"{accelerator} has {chips} chips, and the topology {chosen} has others", where="tpu.topology")
    per_host = min(chips_per_host or 4, chips)
    if chips % per_host:
        raise TpuxError(f"{chips} chips are no multiple of {per_host}", where="tpu.chips_per_host")
    return Slice(kind.label, chosen, chips // per_host, per_host)


def _usual_name(accelerator: str) -> str:
    """Return the name with v5litepod for v5e, once there is such a type."""
    return re.sub("^v5e-", "v5litepod-", accelerator)


class GkeTpuSection(TpuSection):
    """Pods on the TPU nodes of a cluster of Google Kubernetes Engine."""

    transport: ClassVar[str] = "gke"

    accelerator: Annotated[str, AfterValidator(_usual_name)] | None = None
    """The accelerator's type and size, such as v6e-16 or tpu7x-32."""
    topology: Annotated[str, Field(pattern=r"^\d+(x\d+){1,2}$")] | None = None
    """The topology of each slice, such as 2x2x4, where the accelerator allows several; by default the usual one."""
    chips_per_host: Literal[1, 4, 8] | None = None
    """The chips of each node: 8 for single-host v5e and v6e nodes of machine types that end with 8t; by default 4."""
    node_count: int = Field(1, ge=1, validation_alias=AliasChoices("node_count", "slices"))
    """The number of slices (`slices` is an alias), each of which is one node pool; more than one is a multislice."""
    capacity: Capacity = "on-demand"
    """Which nodes to use: on-demand, spot, reservation (with tpu.reservation) or flex-start."""
    reservation: str | None = None
    """The name of the reservation whose nodes are used, for capacity: reservation."""
    cluster: str | None = None
    """The name of the cluster, to find it without a kubeconfig (with location and project)."""
    location: str | None = None
    """The cluster's region or zone, with tpu.cluster."""
    project: str | None = None
    """The cluster's Google Cloud project, with tpu.cluster; by default the environment's or gcloud's."""
    kubeconfig: str | None = None
    """The path of the kubeconfig; by default that of the shell that creates the job."""
    context: str | None = None
    """The context of the kubeconfig; by default the current one."""
    namespace: _Name | None = None
    """The namespace; by default that of the context, else default."""
    image: str | None = None
    """The container image, with sh, coreutils, grep and util-linux, such as python:3.12-slim."""
    service_account: _Name | None = None
    """The Kubernetes service account of the pods, such as one with Workload Identity."""
    queue: _Name | None = None
    """The LocalQueue of Kueue that admits the job; without it the pods are created at once."""
    priority: _Name | None = None
    """The WorkloadPriorityClass of Kueue with tpu.queue, otherwise the PriorityClass of the pods."""
    volumes: dict[Annotated[str, Field(pattern="^/")], dict[str, object]] = Field(default_factory=dict)
    """Volumes of the pods by mount path, as in a pod: /data: {persistentVolumeClaim: {claimName: data}}."""
    storage: Annotated[str, Field(pattern="^/")] | None = None
    """A directory of a volume that all pods share and that outlives them, for the output of the job."""
    termination_grace: Duration = 60.0
    """How long a pod that is deleted, such as by a preemption of Kueue, has to save; spot nodes give 15 s at most."""
    pod: dict[str, object] = Field(default_factory=dict)
    """Anything else of the pod template (metadata, spec), merged into it last; lists of named items by their names."""

    @model_validator(mode="before")
    @classmethod
    def _pricing_of_capacity(cls, given: object) -> object:
        """Set core's `pricing`, on which the default rule of the job depends: what a queue admits may be preempted."""
        if not isinstance(given, dict):
            return given
        capacity = given.get("capacity") or ("spot" if given.get("pricing") == "spot" else "on-demand")
        usual = _PRICING.get(str(capacity), "ondemand")
        usual = "preemptible" if usual == "ondemand" and given.get("queue") else usual
        if given.get("pricing") in {"spot", "preemptible"} and usual != given["pricing"]:
            raise ValueError(f"pricing: {given['pricing']} contradicts capacity: {capacity}; remove pricing")
        return {**given, "capacity": capacity, "pricing": usual}

    @model_validator(mode="after")
    def _belong_together(self) -> GkeTpuSection:
        if (self.capacity == "reservation") != bool(self.reservation):
            raise ValueError("reservation and capacity: reservation belong together")
        if bool(self.cluster) != bool(self.location):
            raise ValueError("cluster and location belong together")
        if self.cluster and (self.context or self.kubeconfig):
            raise ValueError("cluster needs no kubeconfig: remove context and kubeconfig")
        return self

    def slice(self) -> Slice:
        """Return one slice, as GKE selects it.

        Raises:
            TpuxError: there is none like that.
        """
        if self.accelerator is None:
            raise TpuxError("gke needs an accelerator, such as v6e-16", where="tpu.accelerator")
        return slice_of(self.accelerator, self.topology, self.chips_per_host)

    def count_workers(self) -> int | None:
        """Return the number of pods."""
        return None if self.accelerator is None else self.node_count * self.slice().hosts

    def exposed_keys(self) -> dict[str, str]:
        """Return the keys that become part of the JobSet, which others in the namespace can read."""
        hint = "give it to the program in command.env, or name a Secret of Kubernetes (secretKeyRef, secretName)"
        return dict.fromkeys(["pod", "volumes"], hint)

    def durable_paths(self) -> list[str]:
        """Return the volumes that outlive the pods."""
        lasting = [path for path, volume in self.volumes.items() if _lasts(volume)]
        return [*([self.storage] if self.storage and not self.passing_volume(self.storage) else []), *lasting]

    def all_volumes(self) -> dict[str, dict[str, object]]:
        """Return the volumes of the pods by mount path, with those that every pod has, if nothing else is there."""
        return self.volumes | {path: one for path, one in _OWN_VOLUMES.items() if path not in self.volumes}

    def passing_volume(self, path: str) -> str:
        """Return the kind of the volume that a path is on, if that ends with its pod or its node; else ""."""
        volumes = self.all_volumes()
        above = [each for each in volumes if PurePosixPath(path).is_relative_to(each)]
        volume = volumes[max(above, key=len)] if above else None
        return "" if volume is None or _lasts(volume) else next(iter(volume), "nothing")


def _lasts(volume: Mapping[str, object]) -> bool:
    """Return whether a volume outlives the pods."""
    csi = volume.get("csi")
    driver = str(csi.get("driver")) if isinstance(csi, dict) else ""
    return bool(_LASTING & {*volume}) and not any(name in driver for name in _FLEETING)


def section_of(tpu: TpuSection) -> GkeTpuSection:
    """Return the section `tpu` as this plugin's model.

    Raises:
        TpuxError: it is another plugin's.
    """
    if not isinstance(tpu, GkeTpuSection):
        raise TpuxError("the section tpu is not that of gke")
    return tpu

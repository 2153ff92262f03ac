"""The TPUs that people share: which there are, who uses each now, and which a job would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpux import ProvisionRequest, TpuxError
from tpux.api import machines
from tpux.api.text import printable
from tpux_gcp.api import Api
from tpux_gcp.claims import claim_of_another
from tpux_gcp.labels import JOB, STORE, USER, label_value
from tpux_gcp.lookup import FoundTpu, list_tpus
from tpux_gcp.registered import POOL, registered
from tpux_pool.section import PoolSection

LATEST = 1e11
"""Seconds since the epoch; what another user's file says may be any number."""


@dataclass(frozen=True)
class Use:
    """Who uses a TPU.

    Attributes:
        user: the user.
        job: the id of the job, "" for a hold.
        store: the other store of which the job is; "" for this one.
        since, until: in seconds since the epoch, 0 if that is unknown or has no end.
        note: what the user says about it.
    """

    user: str
    job: str = ""
    store: str = ""
    since: float = 0.0
    until: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        if not self.job and not self.store:
            return f"held by {self.user}{f' ({self.note})' if self.note else ''}"
        job = f"job {self.job.lstrip('0')} of {self.user}" if self.job else self.user
        return f"in use by {job}{f' in another store ({self.store})' if self.store else ''}"


@dataclass(frozen=True)
class SharedTpu:
    """A TPU of the pool.

    Attributes:
        found: what the cloud says.
        alias: what it is called in this store, "" if it is not registered.
        pool: the pool of its label, "" without one.
        use: who uses it, None if nobody does.
        shadowed: its name is the alias of another one, which it then means.
    """

    found: FoundTpu
    alias: str
    pool: str
    use: Use | None
    shadowed: bool = False

    @property
    def key(self) -> str:
        """Its zone and name."""
        return f"{self.found.location.zone}/{self.found.name}"

    def is_called(self, word: str) -> bool:
        """Whether a word means it: its alias, or its name."""
        return word == self.alias or (word == self.found.name and not self.shadowed)

    @property
    def is_ready(self) -> bool:
        """Whether it could be used now."""
        return self.found.resource.status == "ready" and bool(self.found.resource.workers)

    @property
    def called(self) -> str:
        """Its alias or name."""
        return self.alias or self.found.name


def lease_names(tpu: FoundTpu) -> list[str]:
    """Return the names under which a TPU is leased."""
    return tpu.resource.lease_names(tpu.location, tpu.name)


def list_shared(api: Api) -> list[SharedTpu]:
    """Return the registered TPUs of a project that exist, in their order, then those that have the label of a pool.

    Raises:
        TpuxError: the API failed, or the registered ones cannot be read.
    """
    known = [one for one in registered() if one.project == api.project]
    aliases = {(one.name, one.zone): one.alias for one in known}
    words = set(aliases.values())
    order = {key: index for index, key in enumerate(aliases)}
    every, _ = list_tpus(api, None)
    found = [
        SharedTpu(
            tpu,
            alias := aliases.get(key, ""),
            tpu.resource.labels.get(POOL, ""),
            use_of(tpu),
            shadowed=tpu.name in words - {alias},
        )
        for tpu in every
        if (key := (tpu.name, tpu.location.zone)) in aliases or POOL in tpu.resource.labels
    ]
    return sorted(found, key=lambda tpu: order.get((tpu.found.name, tpu.found.location.zone), len(order)))


def use_of(tpu: FoundTpu) -> Use | None:
    """Return who uses a TPU: by a lease of this store, the labels of the job that created it, or another's claim."""
    for name in lease_names(tpu):
        if lease := machines.lease_of(name):
            job = str(lease[JOB]) if lease[JOB] != machines.HOLD else ""
            since, until = _seconds(lease.get("since")), _seconds(lease.get("until"))
            return Use(
                str(lease[USER]), job, since=since, until=until, note=printable(str(lease.get("note", "")))[:200]
            )
    for labels in (tpu.resource.labels, *(node.labels for node in tpu.resource.nodes)):
        if JOB not in labels or STORE not in labels:
            continue
        ours = labels[STORE] == label_value(machines.store_id())
        if not ours or machines.is_active(labels[JOB]):
            return Use(labels.get(USER, "?"), labels[JOB], store="" if ours else labels[STORE])
    if (claim := claim_of_another(tpu.resource.labels, machines.store_id())) is not None:
        return Use(claim.user or "?", claim.job, store=claim.store, since=claim.since, until=claim.until)
    return None


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 < value < LATEST else 0.0


@dataclass(frozen=True)
class Demand:
    """What a job would take.

    Attributes:
        job, user: whose it is.
        since: when it was requested: earlier ones come first.
        name: the alias or the name of the one TPU, "" for any.
        accelerators, zones: in the order of preference; no zones are all.
        pricing: the pricing models, empty for all.
        nodes: the number of slices.
        source, pool: as in the section `pool`.
        version: the runtime version, "" for any.
        avoid: `zone/name` of those that could not be borrowed a short time ago: until then they are for other jobs.
    """

    job: str
    user: str
    since: float
    name: str = ""
    accelerators: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    pricing: tuple[str, ...] = ()
    nodes: int = 1
    source: tuple[str, ...] = ("registered",)
    pool: str = "default"
    version: str = ""
    avoid: tuple[str, ...] = ()

    @classmethod
    def of(cls, request: ProvisionRequest, since: float, avoid: Sequence[str] = ()) -> Demand:
        """Return what a request asks for."""
        section = request.section if isinstance(request.section, PoolSection) else PoolSection.model_validate({})
        given = request.tpu.accelerator or ()
        return cls(
            job=request.labels[JOB],
            user=request.labels[USER],
            since=since,
            name=request.tpu.name or "",
            accelerators=(given,) if isinstance(given, str) else tuple(given),
            zones=tuple(section.zones),
            pricing=tuple(section.pricing),
            nodes=request.tpu.node_count,
            source=tuple(section.source),
            pool=section.name,
            version=getattr(request.tpu, "version", None) or "",
            avoid=tuple(avoid),
        )

    def fits(self, tpu: SharedTpu) -> bool:
        """Return whether it would take a TPU if that is free."""
        resource = tpu.found.resource
        in_source = ("registered" in self.source and tpu.alias) or ("cloud" in self.source and tpu.pool == self.pool)
        return bool(
            in_source
            and (not self.name or tpu.is_called(self.name))
            and (not self.accelerators or resource.accelerator in self.accelerators)
            and (not self.zones or tpu.found.location.zone in self.zones)
            and (not self.pricing or resource.pricing in self.pricing)
            and len(resource.nodes) == self.nodes
            and (not self.version or not {node.version for node in resource.nodes if node.version} - {self.version})
        )

    def may_take(self, tpu: SharedTpu) -> bool:
        """Return whether it may take a TPU now: nobody uses it, or the user holds it and the job names it."""
        use = tpu.use
        own_hold = use is not None and not use.job and not use.store and bool(self.name) and use.user == self.user
        own = use is not None and not use.store and use.job == self.job  # of a step that was cut off
        return self.fits(tpu) and tpu.key not in self.avoid and tpu.is_ready and (use is None or own_hold or own)

    def choose(self, tpus: Sequence[SharedTpu]) -> SharedTpu | None:
        """Return the TPU that it would take of these, None if there is none."""

        def rank(tpu: SharedTpu) -> tuple[int, int]:
            return _index(self.accelerators, tpu.found.resource.accelerator), _index(
                self.zones, tpu.found.location.zone
            )

        return min(filter(self.may_take, tpus), key=rank, default=None)


def _index(values: Sequence[str], value: str) -> int:
    return values.index(value) if value in values else len(values)


def require_project(project: str) -> None:
    """Require that a project is known.

    Raises:
        TpuxError: it is not.
    """
    if not project:
        raise TpuxError("no Google Cloud project", hint="gcloud config set project PROJECT, or set tpu.project")


def as_mapping(tpu: SharedTpu) -> Mapping[str, str]:
    """Return what identifies a TPU, for a saved state."""
    found = tpu.found
    return {"name": found.name, "zone": found.location.zone, "accelerator": found.resource.accelerator}

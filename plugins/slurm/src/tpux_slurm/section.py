"""The config section `tpu` of the allocator `slurm`."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from tpux import TpuSection
from tpux.fields import Duration

_OWN_OPTIONS = ("job-name", "comment", "array", "dependency", "requeue", "parsable", "wrap")
_OWN_LETTERS = {"-J": "job-name", "-a": "array", "-d": "dependency", "-M": "clusters"}
_ELSEWHERE = "clusters"
"""squeue, scontrol and scancel ask the local cluster: a job of another one would never be found, nor be cancelled."""
_FLAGS = re.compile(r"^-[HIOQWhksv]+(?=[a-zA-Z])")
"""Letters without a value, which may stand before another one."""
_Name = Annotated[str, Field(pattern=r"^[^\s\-][^\s]*$")]
_Path = Annotated[str, Field(pattern=r"^/")]


def _foreign_option(option: str) -> str:
    """Refuse what tpux sets itself. sbatch accepts the beginning of an option's name as well."""
    name = option.split("=")[0]
    if not option.startswith("-") or option in {"-", "--"}:
        raise ValueError(f"{option!r} is not an option of sbatch: write one string for each, such as --constraint=v100")
    refused = (*_OWN_OPTIONS, _ELSEWHERE)
    own = next((own for own in refused if name.startswith("--") and own.startswith(name[2:])), "")
    own = own or _OWN_LETTERS.get(_FLAGS.sub("-", option)[:2], "")
    if own == _ELSEWHERE:
        raise ValueError(
            f"tpux uses the local cluster only: remove {option}, and run tpux on that cluster's login node"
        )
    if own:
        raise ValueError(f"tpux sets --{own} itself: remove {option}")
    return option


class SlurmTpuSection(TpuSection):
    """The nodes of a Slurm job."""

    transport: ClassVar[str] = "slurm"

    pricing: Literal["spot", "preemptible", "ondemand"] = "preemptible"
    """The default rule of the job is pre, as for preemptible machines, since a time limit ends every Slurm job."""
    keep_on_failure: Duration | None = 600.0
    """How long to keep a failed job's nodes, for a resume: idle nodes are other people's."""
    keep_on_stop: Duration = 600.0
    """How long to keep a stopped job's nodes, for a resume."""
    nodes: int = Field(1, ge=1)
    """The number of nodes, each of which is a worker."""
    partition: _Name | None = None
    """The partition; by default that of the cluster."""
    account: _Name | None = None
    """The account that the nodes are charged to; by default the user's."""
    qos: _Name | None = None
    """The quality of service; by default the account's."""
    time: Annotated[str, Field(pattern=r"^\d+(-\d+)?(:\d+){0,2}$")] | Annotated[int, Field(ge=1)] | None = None
    """The time limit as in sbatch: minutes, or a text such as "12:00:00" or "2-00". The job resumes after it."""
    gres: _Name | None = None
    """Generic resources of each node, such as gpu:8."""
    exclusive: bool = True
    """Request whole nodes with all of their memory; otherwise what gres, cpus and mem say."""
    cpus: int | None = Field(None, ge=1)
    """CPUs of each node, if exclusive is false."""
    mem: _Name | None = None
    """Memory of each node, such as 64G, if exclusive is false."""
    sbatch: list[Annotated[str, AfterValidator(_foreign_option)]] = Field(default_factory=list)
    """Further options of sbatch that the site needs, such as --constraint=v100: one string for each."""
    storage: _Path | None = None
    """A directory that all nodes share and that outlives them, for the output of the job."""
    node_directory: _Path | None = None
    """The node's own directory for the files of jobs; by default $TMPDIR, else /tmp, with /tpux-<uid>."""

    @model_validator(mode="after")
    def _nodes_are_workers(self) -> SlurmTpuSection:
        if self.node_count != 1:
            raise ValueError("node_count is the number of slices, which Slurm does not have: use nodes")
        if self.exclusive and (self.cpus or self.mem):
            raise ValueError("cpus and mem are those of exclusive: false; whole nodes have all of both")
        return self

    def warnings(self) -> dict[str, str]:
        """Return which keys have no effect."""
        return {"accelerator": "not used by slurm: nodes and gres say what is requested"} if self.accelerator else {}

    def durable_paths(self) -> list[str]:
        """Return the directory that all nodes share: `~` is the node's own, and ends with the Slurm job."""
        return [self.storage] if self.storage else []

    def count_workers(self) -> int:
        """Return the number of nodes."""
        return self.nodes

"""How a config is changed for a rehearsal, so that it uses nothing but this machine, and is preempted as told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpux import JsonValue

if TYPE_CHECKING:
    from tpux_rehearse.emulation import Emulation

MODULES_BY_SECTION = ("ssh", "code", "gcsfuse", "script")
"""The modules that their sections select in a config without `setup.modules`; the environment follows."""
LOCAL = "local.="
"""The override of the section that preempts local workers."""
CLOUD_MODES = ("tpu-vm", "queued-resources")
"""The allocators that the emulator serves; the first one takes the place of any other."""
OF_WORKERS = frozenset({"ssh", "code"})
"""Modules that change nothing outside of the worker's home directory."""


@dataclass(frozen=True)
class Preemptions:
    """What happens to the program.

    Attributes:
        after: seconds from its start to each preemption.
        times: how many attempts are preempted, one after the other.
        notice: seconds from the announcement to the loss of the machines; None if they vanish without one.
        restart: the program is stopped and resumed once instead, on the same machines.
    """

    after: float
    times: int = 1
    notice: float | None = None
    restart: bool = False


@dataclass(frozen=True)
class Plan:
    """A config as it is rehearsed.

    Attributes:
        overrides: `section.key=value` each, those of the user first.
        notes: how the rehearsal differs from a run of the config, a sentence each.
    """

    overrides: tuple[str, ...]
    notes: tuple[str, ...]


def plan_rehearsal(
    config: Mapping[str, JsonValue],
    given: Sequence[str],
    preemptions: Preemptions,
    *,
    listeners: Sequence[str],
    emulation: Emulation | None = None,
) -> Plan:
    """Return how a config is changed.

    Args:
        config: the config's sections, with all references resolved.
        given: the overrides of the user.
        preemptions: what happens to the program.
        listeners: the installed plugins that report events of jobs to somebody.
        emulation: the emulator that provides the machines; None for local workers.
    """
    job, tpu, setup = _section(config, "job"), _section(config, "tpu"), _section(config, "setup")
    modules = _modules(config, job, setup)
    overrides, notes = list(given), []
    own = _names(*modules, job.get("rule"), *_list(_section(config, "command").get("finished_by")))
    if silent := [name for name in listeners if name not in own]:
        disabled = [*_list(_section(config, "plugins").get("disabled")), *silent]
        overrides.append(f"plugins.disabled=[{', '.join(map(str, disabled))}]")
        notes.append(f"not used in a rehearsal, since they report to somebody: {', '.join(silent)}")
    if job.get("loop"):
        overrides.append("job.loop=false")
        notes.append("job.loop is off: the rehearsal ends with the program")
    if "gcsfuse" in modules:
        modules.remove("gcsfuse")
        overrides.append(f"setup.modules=[{', '.join(modules)}]")
        notes.append("no bucket is mounted: the module gcsfuse is left out")
    if not (job.get("rule") or preemptions.restart or tpu.get("pricing") in {"spot", "preemptible"}):
        overrides.append("tpu.pricing=spot")
        notes.append("tpu.pricing is spot: on demand, no attempt follows a preemption")
    if emulation:
        overrides += _emulated_nodes(tpu, emulation)
        notes.append("the machines are emulated TPU VMs, on this machine")
    else:
        overrides += _local_workers(preemptions)
        notes.append("the machines are local workers, on this machine")
    if (
        not emulation
        and (there := job.get("output_dir"))
        and not any(one.startswith("job.output_dir=") for one in given)
    ):
        overrides.append("job.output_dir=null")
        notes.append(f"the output directory is one of the rehearsal, in place of {there}")
    if emulation and not any(one.startswith("job.output_dir=") for one in given):
        overrides.append(f"job.output_dir={emulation.shared}")
        place = f", in place of {job['output_dir']}" if job.get("output_dir") else ""
        notes.append(f"the output directory is in {emulation.shared} of the workers, which outlives them{place}")
    if as_they_are := [name for name in modules if name not in OF_WORKERS]:
        notes.append(f"set up as in the config: {', '.join(as_they_are)}")
    return Plan(tuple(overrides), tuple(notes))


def undisturbed(plan: Plan) -> Plan:
    """Return the same plan without preemptions."""
    overrides = (f"{LOCAL}{{}}" if one.startswith(LOCAL) else one for one in plan.overrides)
    return Plan(tuple(overrides), plan.notes)


def _local_workers(preemptions: Preemptions) -> list[str]:
    keys = {"preempt_after": f"{preemptions.after}s", "preempt_times": str(preemptions.times)}
    if preemptions.notice is not None:
        keys["preempt_notice"] = f"{preemptions.notice}s"
    section = {} if preemptions.restart else keys
    text = ", ".join(f"{key}: {value}" for key, value in section.items())
    return ["tpu.allocation_mode=local", f"{LOCAL}{{{text}}}"]


def _emulated_nodes(tpu: Mapping[str, JsonValue], emulation: Emulation) -> list[str]:
    """Return the overrides with which the section `tpu` means nodes of the emulator, and needs no Google Cloud."""
    overrides = [f"tpu.endpoint={emulation.url}", "tpu.project=emulated"]
    if tpu.get("allocation_mode") not in CLOUD_MODES:
        overrides.append(f"tpu.allocation_mode={CLOUD_MODES[0]}")
    defaults = {"accelerator": "v4-8", "zone": "us-central2-b"}
    overrides += [f"tpu.{key}={value}" for key, value in defaults.items() if not tpu.get(key)]
    return overrides + (["tpu.existing=false"] if tpu.get("existing") else [])


def _modules(
    config: Mapping[str, JsonValue], job: Mapping[str, JsonValue], setup: Mapping[str, JsonValue]
) -> list[str]:
    """Return the names of the modules that the config selects, in order."""
    if (named := setup.get("modules")) is not None:
        return _names(*_list(named))
    present = [name for name in MODULES_BY_SECTION if config.get(name) is not None]
    return _names(*present, job.get("env_type"))


def _section(config: Mapping[str, JsonValue], name: str) -> Mapping[str, JsonValue]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, (list, tuple)) else []


def _names(*values: JsonValue) -> list[str]:
    return [value for value in values if isinstance(value, str) and value]

"""Findings before a job is submitted: sbatch accepts more than it can ever start."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tpux import Finding, Job
from tpux_slurm.commands import SlurmError, checked
from tpux_slurm.section import SlurmTpuSection

_OLDEST = (22, 5)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL", re.IGNORECASE)


def check(job: Job, tpu: SlurmTpuSection) -> list[Finding]:
    """Return what is wrong with the section `tpu` on this cluster."""
    resolved = job.resolved.get("slurm", {})
    try:
        version = checked(resolved, ["sinfo", "--version"])
        lines = checked(resolved, ["sinfo", "-h", "-a", "-o", "%R|%D|%l|%G"]).splitlines()
    except SlurmError as error:
        found = Finding("error" if "PATH" in error.message else "warning", error.message, hint=error.hint)
        return [found]
    findings = []
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
        findings.append(Finding("error", f"{version} is too old", hint="22.05 or newer is needed"))
    rows = [line.split("|") for line in lines if line.count("|") == 3]
    chosen = [row for row in rows if tpu.partition is None or row[0] in tpu.partition.split(",")]
    if not chosen:
        hint = f"the partitions are: {', '.join(sorted({row[0] for row in rows})) or 'none'}"
        return [*findings, Finding("error", f"there is no partition {tpu.partition}", where="tpu.partition", hint=hint)]
    return [*findings, *_size(tpu, chosen), *_gres(tpu, chosen), *_time(tpu, chosen), *_secrets(tpu)]


def _size(tpu: SlurmTpuSection, rows: list[list[str]]) -> Iterator[Finding]:
    sizes: dict[str, int] = {}
    for name, nodes, _, _ in rows:
        sizes[name] = sizes.get(name, 0) + int(nodes)
    if tpu.nodes > (largest := max(sizes.values())):
        yield Finding("error", f"{tpu.nodes} nodes are requested, and the partition has {largest}", where="tpu.nodes")


def _gres(tpu: SlurmTpuSection, rows: list[list[str]]) -> Iterator[Finding]:
    known = {entry.split(":")[0] for row in rows for entry in re.sub(r"\(.*?\)", "", row[3]).split(",")}
    for entry in filter(None, (tpu.gres or "").split(",")):
        if entry.removeprefix("gres/").split(":")[0] not in known:
            hint = f"they have: {', '.join(sorted(known - {'null', ''})) or 'none'}"
            yield Finding("error", f"the nodes have no gres {entry}", where="tpu.gres", hint=hint)


def _time(tpu: SlurmTpuSection, rows: list[list[str]]) -> Iterator[Finding]:
    limits = [seconds(row[2]) for row in rows]
    longest = max((limit for limit in limits if limit is not None), default=0)
    if tpu.time is not None and None not in limits and (seconds(str(tpu.time)) or 0) > longest:
        yield Finding("error", f"the time limit of the partition is {longest // 60} minutes", where="tpu.time")


def _secrets(tpu: SlurmTpuSection) -> Iterator[Finding]:
    for option in tpu.sbatch:
        if option.startswith("--export") and _SECRET.search(option):
            message = f"{option.split('=')[0]} would show a secret to everyone who can run ps: use command.env"
            yield Finding("error", message, where="tpu.sbatch", hint="write ${env:NAME} as its value there")


def seconds(text: str) -> int | None:
    """Return the seconds of a time limit of Slurm, such as 1-02:00:00; None if there is none."""
    days, dash, rest = text.partition("-") if "-" in text else ("0", "", text)
    if not re.fullmatch(r"\d+", days) or not re.fullmatch(r"\d+(:\d+)*", rest):
        return None
    numbers = [int(number) for number in rest.split(":")]
    if dash:
        hours, minutes, second = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, second = numbers
    else:
        hours, minutes, second = 0, numbers[0], (numbers[1] if len(numbers) > 1 else 0)
    return ((int(days) * 24 + hours) * 60 + minutes) * 60 + second

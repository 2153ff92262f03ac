"""Findings before a job is submitted: sbatch accepts more than it can ever start."""

from __future__ import annotations

import re

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
        lines = checked(resolved, ["sinfo", "-h", "-o", "%R|%D|%l|%G"]).splitlines()
    except SlurmError as error:
        found = Finding("error" if "PATH" in error.message else "warning", error.message, hint=error.hint)
        return [found]
    findings = []
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if numbers < _OLDEST:
        findings.append(Finding("error", f"{version} is too old", hint="22.05 or newer is needed"))
    rows = [line.split("|") for line in lines if line.count("|") == 3]
    rows_of = [row for row in rows if tpu.partition is None or row[0] in tpu.partition.split(",")]
    if not rows_of:
        names = ", ".join(sorted({row[0] for row in rows})) or "none"
        hint = f"the partitions are: {names}"
        return [*findings, Finding("error", f"there is no partition {tpu.partition}", where="tpu.partition", hint=hint)]
    sizes: dict[str, int] = {}
    for row in rows_of:
        sizes[row[0]] = sizes.get(row[0], 0) + int(row[1])
    if tpu.nodes > max(sizes.values()):
        message = f"{tpu.nodes} nodes are requested, and the partition has {max(sizes.values())}"
        findings.append(Finding("error", message, where="tpu.nodes"))
    known = {entry.split(":")[0] for row in rows_of for entry in re.sub(r"\(.*?\)", "", row[3]).split(",")}
    for entry in (tpu.gres or "").split(","):
        if entry and entry.removeprefix("gres/").split(":")[0] not in known:
            hint = f"they have: {', '.join(sorted(known - {'null', ''})) or 'none'}"
            findings.append(Finding("error", f"the nodes have no gres {entry}", where="tpu.gres", hint=hint))
    limits = [seconds(row[2]) for row in rows_of]
    if tpu.time is not None and None not in limits:
        longest = max(limit for limit in limits if limit is not None)
        if (seconds(str(tpu.time)) or 0) > longest:
            message = f"the time limit of the partition is {longest // 60} minutes"
            findings.append(Finding("error", message, where="tpu.time"))
    for option in tpu.sbatch:
        if option.startswith("--export") and _SECRET.search(option):
            message = f"{option} would show a secret to everyone who can run squeue or ps"
            findings.append(Finding("error", message, where="tpu.sbatch", hint="use ${env:NAME} in command.env"))
    return findings


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

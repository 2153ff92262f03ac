"""Plugins' steps on the workers of a job, for commands: `from tpux.api import steps`.

`run_in_environment(connection, host, script, name, timeout)` runs a script as the job's program would run, and
`check_modules(connection, host, modules)` says which modules are ready on a worker. `describe_steps(steps)` and
`steps_to_json(steps)` show steps that are not run. `api.run_steps` runs them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tpux.lifecycle.command_steps import ModuleStatus as ModuleStatus
from tpux.lifecycle.command_steps import check_modules as check_modules
from tpux.lifecycle.command_steps import run_in_environment as run_in_environment
from tpux.model.json import JsonValue
from tpux.model.steps import Put, Step


def describe_steps(steps: Iterable[Step]) -> list[str]:
    """Return the lines that show steps. Since 0.1."""
    lines: list[str] = []
    for step in steps:
        if isinstance(step, Put):
            source = f"{len(step.source)} bytes" if isinstance(step.source, bytes) else step.source
            lines.append(f"  put {source} to {step.remote}, mode {step.mode:o}")
        else:
            first, *rest = step.script.strip("\n").splitlines()
            lines += [f"  $ {first}", *(f"    {line}".rstrip() for line in rest)]
    return lines


def steps_to_json(steps: Iterable[Step]) -> list[JsonValue]:
    """Return steps for `--json`. Since 0.1."""
    return [_to_json(step) for step in steps]


def _to_json(step: Step) -> dict[str, JsonValue]:
    if isinstance(step, Put):
        source = f"{len(step.source)} bytes" if isinstance(step.source, bytes) else str(step.source)
        return {"put": step.remote, "from": source, "mode": f"{step.mode:o}"}
    return {"script": step.script, "may_fail": step.may_fail}

"""All that the page of one job shows, but for its output."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpux import JsonValue, api, events
from tpux.api import JobInfo
from tpux.api.text import describe_event, describe_failure, find_attempts, printable
from tpux_history.use import read_history
from tpux_web import logs
from tpux_web.machines import cost, prices_and_note

PHASES = {"q": "queue", "s": "set-up", "#": "run"}
ENDS = {"x": "taken away", "!": "failed", "|": "ended", ">": "under way"}
LAST_EVENTS = 20
LONGEST_VALUE = 2000
"""Characters of a value of the config that are shown."""


def describe(job: int) -> dict[str, JsonValue]:
    """Return what there is to know about a job.

    Raises:
        UsageError: there is no such job.
        TpuxError: its files are corrupt.
    """
    info = api.job(str(job))
    happened = list(api.events(info.id))
    now = time.time()
    configs = _configs(info, happened)
    attempts: list[JsonValue] = []
    for attempt in find_attempts(happened, 0.0 if info.ended else now):
        seconds: dict[str, JsonValue] = {PHASES[phase]: round(took, 1) for phase, took in attempt.seconds.items()}
        note = printable(attempt.note)
        attempts.append({"number": attempt.number, "seconds": seconds, "end": ENDS[attempt.end], "note": note})
    config = _flat(_load(configs[-1][1]))
    said = [event for event in happened if not isinstance(event, events.WorkerExited)][-LAST_EVENTS:]
    return {
        "id": int(info.id),
        "name": info.name,
        "state": info.state,
        "ended": info.ended,
        "since": info.since,
        "facts": _facts(info, happened, now),
        "failure": describe_failure(info.failure) if info.failure else "",
        "hint": info.hint or (info.failure.hint if info.failure else ""),
        "attempts": attempts,
        "workers": {str(number): [*found] for number, found in logs.workers(job, info.attempt).items()},
        "command": next((value for key, value in config if key == "command.cmd"), ""),
        "config": "\n".join(f"{key}: {value}" for key, value in config),
        "difference": _difference(configs),
        "events": [{"at": event.at, "text": printable(describe_event(event))} for event in said],
    }


def version(job: int) -> JsonValue:
    """Return what changes whenever `describe` would, but for the length of the attempt that is under way.

    Raises:
        UsageError: there is no such job.
        TpuxError: its files are corrupt.
    """
    info = api.job(str(job))
    return [info.state, info.why, info.hint, info.updated_at, str(info.progress or ""), list(info.tags)]


def _facts(info: JobInfo, happened: Sequence[events.Event], now: float) -> list[JsonValue]:
    held = read_history(happened, 0.0, now).machine_seconds
    spent = cost(held, prices_and_note()[0])
    hours = ", ".join(f"{seconds / 3600:.1f} h of {kind}" for kind, seconds in held.items())
    machines = info.allocation
    facts = {
        "why": info.why,
        "progress": str(info.progress or ""),
        "attempt": f"{info.attempt}" + (f", resumed {info.stage} times" if info.stage else ""),
        "TPU": " ".join(filter(None, [info.accelerator, machines.pricing if machines else "", info.zone])),
        "machines": info.machines or "",
        "workers": str(info.workers or ""),
        "held so far": hours,
        "cost so far": "" if not held else "unknown" if spent is None else f"{spent:.2f}",
        "tags": ", ".join(info.tags),
        "output": info.output_dir,
        "run": info.progress.url if info.progress else "",
        "directory": str(info.directory),
    }
    return [[name, printable(value)] for name, value in facts.items() if value]


def _configs(info: JobInfo, happened: Sequence[events.Event]) -> list[tuple[int, Path]]:
    """Return each attempt that has started, and the directory of its config; the last one is the present config."""
    found, present = [], info.directory
    for event in happened:
        if isinstance(event, events.ConfigChanged):
            present = info.directory / event.config
        elif isinstance(event, events.AttemptStarted):
            found.append((event.attempt, present))
    return found if found and found[-1][1] == present else [*found, (0, present)]


def _difference(configs: Sequence[tuple[int, Path]]) -> str:
    """Return in which lines the last config differs from the one of the attempt before; "" if there is none before."""
    if len(configs) < 2:
        return ""
    (old, before), (new, after) = configs[-2:]
    if before == after:
        return f"attempts {old} and {new} have the same config"
    lines = [[f"{key}: {value}" for key, value in _flat(_load(directory))] for directory in (before, after)]
    later = f"attempt {new}" if new else "next attempt"
    return "\n".join(difflib.unified_diff(lines[0], lines[1], f"attempt {old}", later, lineterm="", n=0))


def _load(directory: Path) -> Mapping[str, JsonValue]:
    """Return the config after overrides and without secrets, as it is stored; {} if it cannot be read."""
    try:
        config = json.loads((directory / "resolved.json").read_text())["config"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return config if isinstance(config, dict) else {}


def _flat(config: Mapping[str, JsonValue], prefix: str = "") -> list[tuple[str, str]]:
    """Return the keys of a config as `section.key`, with their values; those that are empty are left out."""
    found: list[tuple[str, str]] = []
    for key, value in config.items():
        if isinstance(value, dict) and value:
            found += _flat(value, f"{prefix}{key}.")
        elif value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value)
            found.append((f"{prefix}{key}", printable(text)[:LONGEST_VALUE]))
    return found


def progress_section(job: int) -> Mapping[str, JsonValue]:
    """Return the section `progress` of a job's config, {} if it has none."""
    section = _load(api.job(str(job)).config_directory).get("progress")
    return section if isinstance(section, dict) else {}

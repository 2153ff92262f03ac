"""What a message says: job, what happened, the cause, the command to type; of a failure also the last output."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpux import Job, TpuxError, api, events
from tpux.api.text import format_duration, printable
from tpux_notify.section import Kind, MessageSection

LOST = ("preempted", "maintenance", "host-lost", "unreachable")
"""Kinds of failure that are a loss of the machines."""
MASK = "********"
_TAIL = 32 * 1024
_MIN_MASKED = 4


@dataclass(frozen=True)
class Message:
    """A message about one event.

    Attributes:
        number: the same if the event is reported again, so that a reader can drop the duplicate.
        at: when it happened, in seconds since the epoch.
        title: one line.
        text: the lines below it.
    """

    number: str
    at: float
    title: str
    text: str


def message_of(job: Job, event: events.Event, section: MessageSection) -> list[Message]:
    """Return the messages about an event that the section asks for."""
    if isinstance(event, events.Tick):
        found = _at_tick(job, event, section)
    else:
        kind, what, command = _of_event(job, event)
        found = [(kind, event.at, what, getattr(event, "why", ""), command)] if kind else []
    messages, secrets = [], _secrets(job)
    for kind, since, what, cause, command in found:
        if kind in section.events:
            lines = [f"cause: {cause}"] if cause else []
            if hint := getattr(event, "hint", ""):
                lines.append(f"hint: {hint}")
            lines.append(f"to see more: {command}" if kind not in ("release", "queued") else f"command: {command}")
            if kind in ("failed", "restarting"):
                lines += _output(job, section.output_lines, secrets)
            text = mask("\n".join(lines), secrets or [])
            number = f"{job.unique_id}-{since * 1000:.0f}-{kind}"
            messages.append(
                Message(number, event.at, mask(f"job {int(job.id or 0)} {job.name} {what}", secrets or []), text)
            )
    return messages


def _of_event(job: Job, event: events.Event) -> tuple[Kind | None, str, str]:
    number = int(job.id or 0)
    show = f"tpux show {number}"
    match event:
        case events.AttemptRunning():
            again = event.attempt > 1
            what = f"runs again (attempt {event.attempt})" if again else "has started"
            return "recovered" if again else "started", what, f"tpux logs -f {number}"
        case events.StateChanged(to="succeeded"):
            return "finished", "has finished", f"tpux logs {number}"
        case events.StateChanged(to="failed"):
            return "failed", "has failed", show
        case events.StateChanged(to="recovering", kind=kind) if kind in LOST:
            return "preempted", f"has lost its machines ({kind}), and is started again", show
        case events.StateChanged(to="recovering"):
            return "restarting", f"has failed ({event.kind}), and is started again", show
        case _:
            return None, "", ""


def _at_tick(job: Job, event: events.Event, section: MessageSection) -> list[tuple[Kind, float, str, str, str]]:
    """Return what is to be said because nothing has happened: kind, since when, what, the cause and the command."""
    with suppress(TpuxError, OSError):
        info = api.job(job.id or 0)
        waited, number = event.at - info.since, int(job.id or 0)
        if info.state == "provisioning" and waited >= section.queued_after:
            what = f"has waited for machines for {format_duration(waited)}"
            return [("queued", info.since, what, info.why, f"tpux show {number}")]
        at = info.release_at
        if info.ended and info.machines and at is not None and at - event.at <= section.release_notice:
            what = f"releases its machines in {format_duration(max(0.0, at - event.at))}"
            command = f"tpux stop {number} --keep to keep them, tpux resume {number} to use them"
            return [("release", at, what, "", command)]
    return []


def _output(job: Job, count: int, secrets: list[str] | None) -> list[str]:
    """Return the end of the output of the worker whose failure ended the last attempt, else of the first one."""
    if secrets is None:
        return ["(without its last output: the secrets that it may contain are deleted by now)"]
    with suppress(TpuxError, OSError):
        failure, outputs = api.job(job.id or 0).failure, api.outputs(job.id or 0)
        worker = failure.worker if failure and failure.worker in outputs else min(outputs, default=None)
        if worker is not None and (lines := _tail(outputs[worker], secrets)[-count:] if count else []):
            return [f"last output of worker {worker}:", *(f"  {line}" for line in lines)]
    return []


def _tail(path: Path, secrets: list[str]) -> list[str]:
    """Return the last lines of a file, each cut to 500 characters once the secrets are masked."""
    with path.open("rb") as file:
        start = max(0, file.seek(0, 2) - _TAIL)
        file.seek(start)
        text = file.read(_TAIL).decode(errors="replace")
    if start:  # the rest of a line may be the rest of a secret
        text = "".join(re.split(r"[\r\n]", text, maxsplit=1)[1:])
    lines = mask(text, secrets).rstrip("\n").split("\n")
    return [printable(line.rstrip("\r").rpartition("\r")[2])[:500] for line in lines]


def _secrets(job: Job) -> list[str] | None:
    """Return the texts to mask, the longest first; None if the job has secrets that are not stored any more.

    Each line of a secret is masked too: a key of several lines is printed with other text between them.
    """
    try:
        directory = api.job(job.id or 0).config_directory
        names = json.loads((directory / "resolved.json").read_text()).get("secrets", [])
        values = json.loads((directory / "secrets.json").read_text()) if names else {}
    except (TpuxError, OSError, ValueError):
        return None
    if not all(name in values for name in names):
        return None
    texts = {text for value in map(str, values.values()) for text in (value, *map(str.strip, value.splitlines()))}
    return sorted((text for text in texts if len(text) >= _MIN_MASKED), key=len, reverse=True)


def mask(text: str, secrets: list[str]) -> str:
    """Return a text without these secrets, also where the program has printed one."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text

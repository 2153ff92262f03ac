"""Listener `sample`: appends a line to a file of this machine when a job ends."""

from __future__ import annotations

from pathlib import Path

from tpux import Job, Section, events, hookimpl


class SampleSection(Section):
    """Where the ends of jobs are written."""

    path: str
    """The file; `~` is the home directory."""


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the plugin's section."""
    return SampleSection


@hookimpl
def on_event(job: Job, event: events.Event) -> None:
    """Append a line when a job ends. An event may come more than once, and jobs without the section have events too."""
    section = job.section("sample", SampleSection)
    if section and isinstance(event, events.StateChanged) and event.to in {"succeeded", "failed", "stopped"}:
        with Path(section.path).expanduser().open("a") as file:
            file.write(f"job {job.name} {event.to}: {event.why or 'no reason'}\n")

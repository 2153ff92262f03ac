"""Listener `notify`: messages about a job by mail and chat, and a heartbeat of the supervisor."""

from __future__ import annotations

from tpux import Job, Section, events, hookimpl
from tpux_notify.heartbeat import beat
from tpux_notify.outbox import Outbox, deliver
from tpux_notify.section import NotifySection


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `notify`."""
    return NotifySection


@hookimpl
def on_event(job: Job, event: events.Event) -> None:
    """Put a message about the event into the outbox of each URL; request the heartbeat's URL at a tick."""
    if (section := job.section("notify", NotifySection)) is None:
        return
    if section.heartbeat_url and isinstance(event, events.Tick):
        beat(section.heartbeat_url)
    deliver(job, event, section, outboxes(section, job.user))


def outboxes(section: NotifySection, user: str) -> list[Outbox]:
    """Return an outbox for each URL, so that one that does not answer delays no other."""
    return [Outbox({"url": url}, section.digest, user) for url in section.urls]

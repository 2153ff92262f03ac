"""Listener `brevo_email`: mail about a job through Brevo's HTTP API, as jobman's section of that name."""

from __future__ import annotations

from tpux import Job, Section, events, hookimpl
from tpux_notify.outbox import Outbox, deliver
from tpux_notify.section import BrevoSection


@hookimpl
def config_section() -> type[Section]:
    """Return the model of the section `brevo_email`."""
    return BrevoSection


@hookimpl
def on_event(job: Job, event: events.Event) -> None:
    """Put a message about the event into the outbox."""
    if (section := job.section("brevo_email", BrevoSection)) is not None:
        deliver(job, event, section, outboxes(section, job.user))


def outboxes(section: BrevoSection, user: str) -> list[Outbox]:
    """Return the one outbox."""
    receivers = [section.receiver] if isinstance(section.receiver, str) else section.receiver
    to = {"url": section.api_url, "api_key": section.api_key, "sender": section.sender}
    return [Outbox({**to, "receivers": "\n".join(receivers)}, section.digest, user)]

"""`tpux notify` (Administration): try the messages that a job's config asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpux import TpuxError, UsageError, api
from tpux.api.options import JobArg

if TYPE_CHECKING:
    from tpux import JsonValue

app = api.new_app()


@app.callback()
def notify() -> None:
    """Try the messages that a job's config asks for."""


@app.command(epilog="Example: tpux notify test 12")
def test(job: JobArg) -> None:
    """Send a test message to each recipient of a job.

    They are those of the sections `notify` and `brevo_email` of its config; it says which received it. A secret that
    was deleted when the job ended must be in the environment again.
    """
    from tpux_notify import brevo, children, outboxes
    from tpux_notify.section import BrevoSection, NotifySection

    opened = api.open_job(job, reads=["notify", "brevo_email"])
    found = []
    if (section := opened.section("notify", NotifySection)) is not None:
        found += outboxes(section, opened.user)
    if (mail := opened.section("brevo_email", BrevoSection)) is not None:
        found += brevo.outboxes(mail, opened.user)
    if not found:
        raise UsageError(f"job {int(opened.id or 0)} has no recipients", hint="name them in notify.urls of its config")
    number, failed = int(opened.id or 0), 0
    text = f"This is a test of the messages about job {number} {opened.name}.\ncommand: tpux show {number}"
    for outbox in found:
        recipient: dict[str, JsonValue] = {**outbox.recipient}
        error = children.answer({"recipient": recipient, "title": "tpux: a test", "text": text})
        api.say(f"{outbox.label}: {error or 'sent'}")
        failed += bool(error)
    if failed:
        raise TpuxError(f"{failed} of {len(found)} recipients did not get it")

"""Messages that wait to be sent: a file each, below `notify/USER/` in the directory of the store.

A message's number is made of the event, so an event that is delivered twice gives the same number, and so does a
message that is sent again because its sender died before it had noted that.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tpux import Job, TpuxError, api, events
from tpux_notify import children
from tpux_notify.messages import Message, message_of
from tpux_notify.section import MessageSection

_reported: dict[Path, str] = {}
"""The errors that have been reported, by outbox: each is once."""


@dataclass(frozen=True)
class Outbox:
    """The messages to one recipient.

    Attributes:
        recipient: what the sender needs; it has secrets.
        digest: seconds that are one message.
        user: whose jobs they are about; others may share the store.
    """

    recipient: Mapping[str, str]
    digest: float
    user: str

    @property
    def directory(self) -> Path:
        """Where its messages are; the name tells nothing about the recipient."""
        name = hashlib.sha256(json.dumps(self.recipient, sort_keys=True).encode()).hexdigest()[:16]
        return api.home() / "notify" / self.user / name

    @property
    def label(self) -> str:
        """The recipient without its secrets."""
        if "receivers" in self.recipient:
            return f"brevo_email to {self.recipient['receivers'].replace(chr(10), ', ')}"
        parts = urlsplit(self.recipient["url"])
        host = parts.hostname or ""  # of a chat's URL it is a token
        return f"{parts.scheme}://{host if '.' in host or host == 'localhost' else '...'}"

    def put(self, message: Message) -> None:
        """Store a message durably, unless it was sent or is stored already."""
        waiting, sent = self.directory / "pending", self.directory / "sent"
        if (sent / message.number).exists() or (waiting / message.number).exists():
            return
        (api.home() / "notify").mkdir(parents=True, exist_ok=True)
        for directory in (waiting, sent):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self.directory / f".{message.number}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(vars(message), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(waiting / message.number)

    def waits(self) -> bool:
        """Return whether there is a message that has not been sent."""
        with suppress(FileNotFoundError):
            return any((self.directory / "pending").iterdir())
        return False

    def send(self) -> None:
        """Start a sender; if one is at work, the new one ends at once."""
        children.start({"directory": str(self.directory), "recipient": dict(self.recipient), "digest": self.digest})

    def problem(self) -> str:
        """Return why the last try to send failed, "" if it did not."""
        with suppress(OSError, ValueError, AttributeError):
            return str(json.loads((self.directory / "state.json").read_text()).get("error", ""))
        return ""


def deliver(job: Job, event: events.Event, section: MessageSection, outboxes: Iterable[Outbox]) -> None:
    """Store what is to be said about an event, and start the senders.

    Args:
        job: the job.
        event: what has happened to it, or a tick.
        section: says what there are messages of.
        outboxes: those of the recipients.

    Raises:
        TpuxError: earlier messages could not be sent.
        OSError: the message could not be stored, or no process started.
    """
    messages = message_of(job, event, section)
    for outbox in outboxes:
        for message in messages:
            outbox.put(message)
        if messages or (isinstance(event, events.Tick) and outbox.waits()):
            outbox.send()
    if isinstance(event, events.Tick):
        _report(outboxes)


def _report(outboxes: Iterable[Outbox]) -> None:
    for outbox in outboxes:
        known, problem = _reported.get(outbox.directory, ""), outbox.problem()
        _reported[outbox.directory] = problem
        if problem and problem != known:
            raise TpuxError(f"messages to {outbox.label} wait and are tried again: {problem}")

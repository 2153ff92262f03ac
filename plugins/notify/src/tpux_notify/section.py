"""The config sections `notify` and `brevo_email`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tpux import Section
from tpux.fields import Duration

Kind = Literal["started", "finished", "failed", "preempted", "restarting", "recovered", "queued", "release"]
MAX_LINES = 20
HttpUrl = Annotated[str, Field(pattern=r"^https?://\S+$")]


class MessageSection(Section):
    """What both sections have: of which events there are messages, and what is in them."""

    events: list[Kind] = Field(default=["finished", "failed", "preempted", "recovered", "queued", "release"])
    """Of what there are messages; `restarting` is another attempt for any other reason than lost machines."""
    queued_after: Duration = 3600.0
    """How long a job waits for machines before `queued` is sent, once for each request."""
    release_notice: Duration = 600.0
    """How long before held machines are released `release` is sent."""
    digest: Duration = 60.0
    """Events within this time are one message."""
    output_lines: Annotated[int, Field(ge=0, le=MAX_LINES)] = MAX_LINES
    """How many lines of the program's last output are in a message about a failure."""

    def ticks(self) -> bool:
        """Return True: what has not happened is reported too."""
        return True


class NotifySection(MessageSection):
    """Messages about the job, by mail and chat."""

    urls: list[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*://\S+$")]] = Field(default_factory=list)
    """Apprise URLs, one for each recipient: mailtos://, slack://, discord://, workflows:// (Teams), jsons://, ..."""
    heartbeat_url: HttpUrl | None = None
    """A URL that the supervisor requests every 5 minutes, so that a service outside reports its death."""

    def warnings(self) -> dict[str, str]:
        """Return that a section without a recipient sends nothing."""
        return {} if self.urls or self.heartbeat_url else {"urls": "it is empty: nothing is sent"}


class BrevoSection(MessageSection):
    """Mail about the job, sent by Brevo."""

    api_key: Annotated[str, Field(min_length=1)]
    """The API key, as ${env:BREVO_API_KEY}."""
    sender: Annotated[str, Field(pattern=r"^\S+@\S+$")]
    """The address that the mail is from; Brevo must know it."""
    receiver: Annotated[str, Field(pattern=r"^\S+@\S+$")] | list[Annotated[str, Field(pattern=r"^\S+@\S+$")]]
    """The address, or a list of them, that the mail is sent to."""
    api_url: HttpUrl = "https://api.brevo.com/v3/smtp/email"
    """The URL of Brevo's API."""

    def secret_keys(self) -> dict[str, str]:
        """Return the API key."""
        return {"api_key": "BREVO_API_KEY"}

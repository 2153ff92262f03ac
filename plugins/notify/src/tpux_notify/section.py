"""The config sections `notify` and `brevo_email`."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field

from tpux import Section
from tpux.fields import Duration

Kind = Literal["started", "finished", "failed", "preempted", "restarting", "recovered", "queued", "release"]
MAX_LINES = 20
HttpUrl = Annotated[str, Field(pattern=r"^https?://\S+$")]
_SERVERS = {"mailto", "mailtos", "syslog", "rsyslog"}
_WEBHOOKS = {"json", "jsons", "xml", "xmls", "form", "forms"}
_PLAIN_PARAMETERS = {
    "from",
    "to",
    "cc",
    "bcc",
    "reply",
    "name",
    "smtp",
    "mode",
    "format",
    "method",
    "overflow",
    "verify",
}


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

    def secret_keys(self) -> dict[str, str]:
        """Return the URLs that have a secret, or may have one."""
        found = {f"urls.{place}": "NOTIFY_URL" for place, url in enumerate(self.urls) if _may_have_secret(url)}
        if self.heartbeat_url and "@" in self.heartbeat_url.split("/")[2]:
            found["heartbeat_url"] = "HEARTBEAT_URL"
        return found

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


def _may_have_secret(url: str) -> bool:
    """Return False only for a server that is named by its host and by parameters that Apprise takes no secret from.

    Most services have their token as a part of the URL that looks like any other, and the path of a webhook often is
    one; so what is not known to be without a secret counts as one, and Apprise need not be imported to decide it.
    """
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return True
    if parts.scheme not in _SERVERS | _WEBHOOKS or password is not None or parts.fragment or url.count("://") > 1:
        return True
    if parts.scheme in _WEBHOOKS and parts.path.strip("/"):
        return True
    return any(name not in _PLAIN_PARAMETERS for name, _ in parse_qsl(parts.query, keep_blank_values=True))

"""The login in the URL of a repository, and how git gets it: not as an argument, which other users of a machine see."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit


@dataclass(frozen=True)
class Login:
    """The user and password of a URL.

    Attributes:
        server: the URL's scheme and host.
        user: as in the URL, quoted.
        password: as in the URL, quoted; "" without one.
    """

    server: str
    user: str
    password: str

    @property
    def line(self) -> str:
        """The line of git's credential store."""
        return self.server.replace("://", f"://{self.user}:{self.password}@", 1)


def split_credentials(repo: str) -> tuple[str, Login | None]:
    """Split user and password off an http or https URL. Other URLs and paths are returned unchanged.

    A user without a password may be a token, so it is a secret too.
    """
    parts = urlsplit(repo)
    before, _, host = parts.netloc.rpartition("@")
    if parts.scheme not in {"http", "https"} or before in {"", ":"}:
        return repo, None
    user, _, password = before.partition(":")
    return urlunsplit(parts._replace(netloc=host)), Login(f"{parts.scheme}://{host}", user or "x", password)


def options_of(login: Login, directory: Path) -> list[str]:
    """Write a login into files for git, and return git's options that name them.

    The user's credential helpers are asked first: they may have the password of a user that the URL names.
    """
    store, config = directory / "credentials", directory / "config"
    values = {"username": unquote(login.user), "helper": f"store --file={shlex.quote(str(store))}"}
    lines = [f"[credential {_quoted(login.server)}]", *(f"{name} = {_quoted(value)}" for name, value in values.items())]
    for path, text in {store: login.line, config: "\n".join(lines)}.items():
        path.touch(mode=0o600)
        path.write_text(f"{text}\n")
    return ["-c", f"include.path={config}"]


def _quoted(value: str) -> str:
    """Return a value or the name of a section as git's configuration files have it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

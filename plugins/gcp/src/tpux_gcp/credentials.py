"""A job's place: where its TPUs are, and the credentials with which they are requested.

Credentials are loaded from what was found when the job was created (`project.py`), not from the environment of now.
"""

from __future__ import annotations

import json
import logging
import threading
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from tpux import JsonValue, plain_reason
from tpux_gcp.errors import LOGIN_COMMAND, CloudError, InvalidConfigError, Problem, from_failed_call

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from requests import Response

GOOGLE_ENDPOINT = "https://tpu.googleapis.com"
COMPUTE_ENDPOINT = "https://compute.googleapis.com"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
STORAGE_PROTOCOL = "tpux-gs"
TIMEOUT = 10.0
"""Seconds for a call of an API without a client library."""


@dataclass(frozen=True)
class Place:
    """Where a job's TPUs are, and who asks for them.

    Attributes:
        project: the Google Cloud project; empty if none is set anywhere.
        zone: the default zone, for a config without one; empty if none is set.
        endpoint: the address of the TPU API.
        endpoint_allowed: credentials may be sent to it.
        login: the source of the credentials; empty if there are none, or none are needed.
        file: the file with the credentials.
        account: whose they are, as far as the file says it.
        quota_project: the project that the calls are charged to; empty for the credentials' own.
        storage_endpoint: the address of an emulator of Cloud Storage; empty for Google's.
    """

    project: str = ""
    zone: str = ""
    endpoint: str = GOOGLE_ENDPOINT
    endpoint_allowed: bool = False
    login: Literal["", "file", "metadata-server"] = ""
    file: str = ""
    account: str = ""
    quota_project: str = ""
    storage_endpoint: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """Return the fields as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> Place:
        """Return the place that `to_json` wrote."""
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in data.items() if key in known})  # type: ignore[arg-type]

    def required_project(self) -> str:
        """Return the project.

        Raises:
            InvalidConfigError: no project is set anywhere.
        """
        if not self.project:
            raise InvalidConfigError(
                "no Google Cloud project in tpu.project, the environment or gcloud's configuration",
                f"set tpu.project, or run: gcloud config set project PROJECT (and, to log in: {LOGIN_COMMAND})",
            )
        return self.project


def is_emulator(endpoint: str) -> bool:
    """Return True for plain HTTP, over which no credentials must be sent."""
    return endpoint.startswith("http://")


def is_google(endpoint: str) -> bool:
    """Return True for an address of Google's."""
    return (urlsplit(endpoint).hostname or "").endswith(".googleapis.com")


def account_of(file: Path) -> str:
    """Return the account in a file of credentials, empty if it names none or cannot be read."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return str(content.get("client_email") or content.get("account") or "")
    except (OSError, ValueError, AttributeError):
        return ""


_lock = threading.Lock()
_credentials: dict[Place, Credentials] = {}


def credentials(place: Place) -> Credentials:
    """Return the credentials of a place, anonymous ones for an emulator.

    They are loaded once per process and refreshed by google-auth. After a failure the next call tries again, and after
    `forget` it loads them again: the user may have logged in anew.

    Raises:
        CloudError: there are none, they cannot be read, or they are another account's now.
    """
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError

    if is_emulator(place.endpoint):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    if not place.endpoint_allowed:
        raise CloudError(Problem("auth", f"no credentials are sent to {place.endpoint}", "create the job again"))
    key = _key(place)
    with _lock:
        if key not in _credentials:
            try:
                _credentials[key] = _load(place)
            except OSError as error:  # a disk, not the login
                raise CloudError(Problem("transient", f"cannot read the credentials: {plain_reason(error)}")) from error
            except (GoogleAuthError, ValueError) as error:
                message = f"no Google Cloud credentials: {plain_reason(error)}"
                raise CloudError(Problem("auth", message, LOGIN_COMMAND)) from error
        return _credentials[key]


def forget(place: Place) -> None:
    """Forget credentials that were rejected."""
    with _lock:
        _credentials.pop(_key(place), None)


def _key(place: Place) -> Place:
    return replace(place, project="", zone="", endpoint="")


def storage_options(place: Place) -> dict[str, object]:
    """Return the arguments of gcsfs for a place: its credentials, none for an emulator.

    Raises:
        CloudError: there are no credentials, they cannot be read, or they are another account's now.
    """
    import fsspec

    # It logs each error with a traceback, and raises it too: core reports it.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    # The class that gcsfs registers as `gs` asks Google about each bucket first, with this process's credentials.
    fsspec.register_implementation(STORAGE_PROTOCOL, "gcsfs.core.GCSFileSystem", clobber=True)
    options: dict[str, object] = {"protocol": STORAGE_PROTOCOL, "project": place.project or ""}
    if place.storage_endpoint:
        return {**options, "token": "anon", "endpoint_url": place.storage_endpoint}
    if not place.login:  # TPUs of an emulator, with a bucket that anyone may read
        return {**options, "token": "anon"}
    return {**options, "token": credentials(replace(place, endpoint=GOOGLE_ENDPOINT, endpoint_allowed=True))}


def _load(place: Place) -> Credentials:
    """Load the credentials that the place names, whatever this process's environment says.

    Raises:
        CloudError: there are none, or they are of another account than when the job was created.
    """
    import google.auth
    from google.auth import compute_engine
    from google.auth.credentials import with_scopes_if_required

    quota_project = place.quota_project or None
    if place.login == "metadata-server":
        return compute_engine.Credentials(quota_project_id=quota_project, scopes=SCOPES)  # type: ignore[no-untyped-call]
    if place.login != "file":
        message = "no Google Cloud credentials: neither a file nor a metadata server"
        raise CloudError(Problem("auth", message, LOGIN_COMMAND))
    account = account_of(Path(place.file))
    if place.account and account and account != place.account:
        message = f"{place.file} is of {account} now; the job was created as {place.account}"
        raise CloudError(Problem("auth", message, f"put the credentials of {place.account} back"))
    with warnings.catch_warnings():  # the file is the user's own; the warnings are for files of strangers
        warnings.simplefilter("ignore")
        found, _ = google.auth.load_credentials_from_file(  # type: ignore[no-untyped-call]
            place.file, quota_project_id=quota_project
        )
    scoped: Credentials = with_scopes_if_required(found, SCOPES)  # type: ignore[no-untyped-call]
    return scoped


def compute_url(place: Place, path: str) -> str:
    """Return the URL of a resource of Compute Engine, of an emulator at its own address."""
    return f"{COMPUTE_ENDPOINT if is_google(place.endpoint) else place.endpoint}/compute/v1/{path}"


def call(place: Place, method: str, url: str, **options: object) -> Response:
    """Make one call of a Google API that has no client library here: OS Login, Compute Engine, Cloud Storage.

    Raises:
        CloudError: there are no credentials, or no answer.
    """
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from requests.exceptions import RequestException

    try:
        with AuthorizedSession(credentials(place)) as session:  # type: ignore[no-untyped-call]
            answer: Response = session.request(method, url, timeout=TIMEOUT, **options)  # type: ignore[no-untyped-call]
            return answer
    except (GoogleAuthError, RequestException) as error:
        problem = from_failed_call(error)
        if problem.kind == "auth":
            forget(place)
        raise CloudError(problem) from error

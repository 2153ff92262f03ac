"""OS Login: VMs that ignore the `ssh-keys` of their metadata and ask for the keys in the profile of a user instead.

Source: "About OS Login", Compute Engine documentation, and the OS Login API v1 (users.importSshPublicKey).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tpux_gcp.credentials import Place, call, is_google
from tpux_gcp.errors import CloudError, InvalidConfigError, Problem, from_http

if TYPE_CHECKING:
    from requests import Response

_log = logging.getLogger(__name__)
KEY = "enable-oslogin"
COMPUTE_ENDPOINT, OS_LOGIN_ENDPOINT = "https://compute.googleapis.com", "https://oslogin.googleapis.com"


def is_enabled(metadata: Mapping[str, object]) -> bool | None:
    """Return whether metadata enable OS Login; None if they do not say so."""
    value = metadata.get(KEY)
    return None if value is None else str(value).lower() in {"true", "1", "y", "yes"}


def is_enabled_in_project(place: Place) -> bool:
    """Return whether a project's common instance metadata enable OS Login; False if that cannot be read.

    `gcloud compute tpus tpu-vm ssh` makes the same call first (compute.projects.get). If the account may not make it, a
    worker that refuses the key reports it later.

    Raises:
        CloudError: there are no credentials.
    """
    endpoint = COMPUTE_ENDPOINT if is_google(place.endpoint) else place.endpoint
    url = f"{endpoint}/compute/v1/projects/{place.project}"
    try:
        answer = call(place, "GET", url, params={"fields": "commonInstanceMetadata"})
        items = answer.json().get("commonInstanceMetadata", {}).get("items", []) if answer.ok else []
        return bool(is_enabled({str(item["key"]): item["value"] for item in items}))
    except CloudError as error:
        if error.problem.kind == "auth":
            raise
        _log.info("cannot read whether project %s enables OS Login: %s", place.project, error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.info("project %s has unexpected metadata: %s", place.project, error)
    return False


def import_keys(place: Place, account: str, public_keys: Iterable[str]) -> str:
    """Import public keys into the profile of the user to whom the credentials belong.

    Importing a key again changes nothing.

    Args:
        place: the project and the credentials.
        account: the user's email address.
        public_keys: `USER:TYPE KEY COMMENT` each; the user is not used.

    Returns:
        The name under which the user logs in: that of the profile's primary POSIX account.

    Raises:
        InvalidConfigError: the account is not known, or its profile has no POSIX account.
        CloudError: a call failed.
    """
    require_account(account)
    endpoint = OS_LOGIN_ENDPOINT if is_google(place.endpoint) else place.endpoint
    url, user = f"{endpoint}/v1/users/{account}:importSshPublicKey", ""
    for key in (line.partition(":")[2] for line in public_keys):
        answer = call(place, "POST", url, params={"projectId": place.project}, json={"key": key})
        if not answer.ok:
            raise CloudError(_problem(answer, place, account))
        user = _user_of(answer) or user
    if not user:
        raise InvalidConfigError(
            f"the OS Login profile of {account} has no POSIX account",
            "the administrator of your organisation creates it; or set tpu.metadata.enable-oslogin: 'FALSE'",
        )
    return user


def require_account(account: str) -> None:
    """Require that the account is known whose profile receives the keys.

    Raises:
        InvalidConfigError: it is not.
    """
    if not account:
        raise InvalidConfigError(
            "OS Login is enabled, and it is not known to which account the credentials belong",
            f"run `gcloud auth login`, create the job again, or set tpu.metadata.{KEY}: 'FALSE'",
        )


def _user_of(answer: Response) -> str:
    """Return the name of the primary POSIX account in a login profile; "" if it has none."""
    try:
        accounts = answer.json()["loginProfile"]["posixAccounts"]
        return str(next((each for each in accounts if each.get("primary")), accounts[0])["username"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""


def _problem(answer: Response, place: Place, account: str) -> Problem:
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = answer.text[:300]
    problem = from_http(answer.status_code, message, place.project)
    if problem.kind in {"auth", "forbidden", "missing", "config"}:
        enable = f"gcloud services enable oslogin.googleapis.com --project {place.project}"
        hint = f"{enable}, and grant {account} roles/compute.osAdminLogin; or set tpu.metadata.{KEY}: 'FALSE'"
        return Problem("auth", f"cannot import tpux's key into the OS Login profile of {account}: {message}", hint)
    return problem

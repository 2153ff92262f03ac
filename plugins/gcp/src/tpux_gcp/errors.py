"""What goes wrong at the TPU API, told apart by what follows: another zone, a pause, or a word to the user."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from tpux import Failure

Kind = Literal[
    "stockout",  # no capacity here: another zone, or later
    "throttled",  # too many requests a minute, for the whole project
    "transient",  # nobody can say: look again, delete nothing
    "busy",  # not in the state that it is in now: look again
    "exists",  # the name is taken
    "missing",  # the API's clear word that there is no such thing
    "quota",
    "auth",
    "config",
]
LOGIN = "gcloud auth application-default login"
# google.rpc.Code (google/rpc/code.proto), as operations and failed queued resources carry it.
_OF_CODE: dict[int, Kind] = {
    3: "config",
    5: "config",  # `Reservation not found`
    6: "exists",
    7: "auth",
    8: "stockout",
    9: "config",
    11: "config",
    16: "auth",
}
_STOCKOUT = re.compile(
    r"no more capacity|insufficient (reserved )?capacity|not enough resources|stockout", re.IGNORECASE
)
_PER_MINUTE = re.compile(r"per minute|rate limit|too many requests", re.IGNORECASE)
_QUOTA = re.compile(r"quota|limit:? *\d", re.IGNORECASE)


@dataclass(frozen=True)
class Problem:
    """One thing that went wrong.

    Attributes:
        kind: what follows from it.
        message: the cloud's own sentence.
        hint: what the user can do.
    """

    kind: Kind
    message: str
    hint: str = ""


class CloudError(Exception):
    """A call of the API that did not succeed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class RefusedError(Exception):
    """The request cannot be served; asking again would not help."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.evidence)
        self.failure = failure


def mistake(evidence: str, hint: str = "") -> RefusedError:
    """A mistake in the config."""
    return RefusedError(Failure("config", evidence=evidence, hint=hint))


def of_status(code: int, message: str, project: str = "") -> Problem:
    """What a `google.rpc.Status` stands for: of an operation, or of a queued resource that failed.

    Code 13, `an internal error has occurred`, is often a stockout in disguise, and an expired `valid_until`
    (code 4) is one too: nothing was to be had for so long.
    """
    kind = _by_words(message) or _OF_CODE.get(code, "stockout")
    return Problem(kind, message or f"code {code}", hint_for(kind, message, project))


def of_http(status: int, message: str, project: str = "") -> Problem:
    """What an HTTP status of the API stands for, with its message."""
    kind: Kind | None = None
    if status in {429, 400}:  # Google sends stockouts and quotas with either
        kind = _by_words(message)
    if kind is None:
        kind = _by_http(status)
    return Problem(kind, message or f"HTTP status {status}", hint_for(kind, message, project))


def _by_http(status: int) -> Kind:
    table: dict[int, Kind] = {401: "auth", 403: "auth", 404: "missing", 409: "exists", 429: "throttled"}
    if status in table:
        return table[status]
    return "config" if 400 <= status < 500 and status not in {408, 499} else "transient"


def _by_words(message: str) -> Kind | None:
    if _STOCKOUT.search(message):
        return "stockout"
    if _PER_MINUTE.search(message):
        return "throttled"
    return "quota" if _QUOTA.search(message) else None


def hint_for(kind: Kind, message: str, project: str) -> str:
    """What the user can do about it."""
    of_project = f" --project {project}" if project else ""
    if kind == "quota":
        return "ask for more on the quota page of the console, delete TPUs that hold it, or use another zone or pricing"
    if kind == "config":
        return "`tpux tpu types --zone ZONE` and `tpux tpu versions --zone ZONE` show what there is"
    if kind != "auth":
        return ""
    if "has not been used" in message or "SERVICE_DISABLED" in message or "is disabled" in message:
        return f"gcloud services enable tpu.googleapis.com{of_project}"
    if "not found or access is unauthorized" in message:
        return f"see that the project may use that zone: gcloud compute tpus locations list{of_project}"
    if "credential" in message.lower() or "token" in message.lower():
        return LOGIN
    return f"see that you have the role roles/tpu.admin in the project, or log in as somebody else: {LOGIN}"


def meaning(error: object, project: str) -> Problem:
    """What an error of google-api-core stands for, by the answer that it was made from."""
    from google.api_core.exceptions import GoogleAPICallError

    assert isinstance(error, GoogleAPICallError)  # noqa: S101
    status, message, name = _answer(error)
    if status is None:
        return Problem("transient", one_line(error))
    problem = of_http(status, message, project)
    if error.reason == "SERVICE_DISABLED":
        return Problem("auth", message, f"gcloud services enable tpu.googleapis.com --project {project}")
    if problem.kind == "missing" and name != "NOT_FOUND":
        # Somebody else's 404 (a proxy, a wrong address) is not the API's word that a thing is gone.
        return Problem("transient", f"an answer that is not the TPU API's: {message}")
    if name == "ABORTED" or (name == "FAILED_PRECONDITION" and problem.kind == "config"):
        return replace(problem, kind="busy")
    return problem


def _answer(error: object) -> tuple[int | None, str, str]:
    """HTTP status, the cloud's own sentence and the status' name (google.rpc.Code)."""
    response = getattr(error, "response", None)
    if response is None:
        return None, "", ""
    try:
        said = response.json()["error"]
        return int(response.status_code), str(said.get("message", "")), str(said.get("status", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return int(response.status_code), one_line(response.text)[:300], ""


def auth_problem(error: Exception) -> Problem:
    """What an error of google-auth stands for."""
    if getattr(error, "retryable", False):
        return Problem("transient", f"the credentials could not be refreshed: {one_line(error)}")
    return Problem("auth", f"the credentials were refused: {one_line(error)}", LOGIN)


def one_line(error: object) -> str:
    """The text of an error in one line."""
    return " ".join(str(error).split())

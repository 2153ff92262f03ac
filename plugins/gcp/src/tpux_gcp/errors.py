"""Errors of the TPU API, classified by what tpux does next: try another zone, wait, or fail the job."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from tpux import Failure, plain_reason

if TYPE_CHECKING:
    from requests.exceptions import RequestException

ProblemKind = Literal[
    "stockout",  # no capacity: try another zone, or wait
    "throttled",  # too many requests per minute for the whole project
    "transient",  # outcome unknown: poll again, delete nothing
    "busy",  # not possible in the resource's current state: poll again
    "exists",  # the name is taken
    "missing",  # the API itself answered that the resource does not exist
    "quota-used",  # a quota of this accelerator, pricing and region is used up: as for a stockout
    "quota",  # that quota is 0: try another zone; asking again does not help
    "forbidden",  # the account may not do this in the zone, or in the project: try another zone
    "auth",  # no or rejected credentials: wrong everywhere, until the user logs in
    "disabled",  # wrong everywhere, whoever logs in: an API that the project has not enabled
    "config",
]
NO_CAPACITY: frozenset[ProblemKind] = frozenset({"stockout", "quota-used"})
"""Kinds of one candidate that may pass: try the next candidate, later this one again."""
REFUSED: frozenset[ProblemKind] = frozenset({"quota", "forbidden"})
"""Kinds of one candidate that remain: try the next candidate; if all are refused, the request fails."""
RETRYABLE: frozenset[ProblemKind] = NO_CAPACITY | {"transient", "throttled", "busy", "exists", "missing"}
"""Kinds after which the next step polls again instead of failing the request."""
START_EMULATOR = "tpux emulator start --detach"
ENDPOINT_HINT = "check tpu.endpoint and the network"
LOGIN_COMMAND = "gcloud auth application-default login"

# google.rpc.Code (google/rpc/code.proto), as operations and failed queued resources carry it.
_KIND_OF_CODE: dict[int, ProblemKind] = {
    3: "config",
    5: "config",  # `Reservation not found`
    6: "exists",
    7: "forbidden",
    8: "stockout",
    9: "config",
    11: "config",
    16: "auth",
}
# A server, or a proxy before it, that gave up or failed while it handled the request. With 501 and 503 it had not begun
# (AIP-194).
_UNANSWERED = frozenset({408, 499, *range(500, 600)} - {501, 503})
# The wordings of the TPU API and of Compute Engine, which creates the VMs.
_STOCKOUT = re.compile(
    r"no more capacity|insufficient (reserved )?capacity|not (have )?enough resources|resource_pool_exhausted|stockout",
    re.IGNORECASE,
)
_PER_MINUTE = re.compile(r"per ?minute|rate limit|too many requests", re.IGNORECASE)
_QUOTA = re.compile(r"quota|limit:? *\d", re.IGNORECASE)
_DISK_IN_USE = re.compile(r"disk resource '.*' is already being used by")
"""Compute Engine's text, also while a TPU that was deleted just now still has the disk: another zone, or later."""
_LIMIT_0 = re.compile(r"limit:? *0(\.0*)?(?![\d.,]*\d)", re.IGNORECASE)
_WRONG_STATE = re.compile(r"not supported while in state", re.IGNORECASE)
# Of a subnetwork, from Compute Engine: as a quota that is used up.
_NO_ADDRESSES = re.compile(r"IP space of .* is exhausted|IP_SPACE_EXHAUSTED", re.IGNORECASE | re.DOTALL)
_NO_SUCH_ZONE = re.compile(r"not found or access is unauthorized|denied on 'locations/", re.IGNORECASE)
_NO_SUCH_TYPE = re.compile(r"invalid AcceleratorType|zonal accelerator configurations", re.IGNORECASE)
_DISABLED = re.compile(r"has not been used|SERVICE_DISABLED|is disabled")


@dataclass(frozen=True)
class Problem:
    """A classified error.

    Attributes:
        kind: what tpux does next.
        message: the API's own message.
        hint: what the user can do.
        unanswered: the request may have taken effect, now or later: nothing says that it did not.
    """

    kind: ProblemKind
    message: str
    hint: str = ""
    unanswered: bool = False


class CloudError(Exception):
    """A failed call of the API."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class AnswerError(Exception):
    """An HTTP answer that is no success, or not the API's.

    Args:
        status: the HTTP status.
        body: the answer's text.
    """

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP status {status}")
        self.status, self.body = status, body


class InvalidConfigError(Exception):
    """A request that cannot succeed as configured; retrying does not help."""

    def __init__(self, evidence: str, hint: str = "") -> None:
        super().__init__(evidence)
        self.failure = Failure("config", evidence=evidence, hint=hint)


def from_status(code: int, message: str, project: str = "") -> Problem:
    """Classify the `google.rpc.Status` of an operation or of a failed queued resource.

    Code 13, `an internal error has occurred`, often hides a stockout; code 4, an expired `valid_until`, means
    that no capacity became available in that time.
    """
    kind = _kind_of_message(message) or _KIND_OF_CODE.get(code, "stockout")
    kind = "disabled" if kind == "forbidden" and _DISABLED.search(message) else kind
    return Problem(kind, message or f"code {code}", hint_for(kind, message, project))


def from_http(status: int, message: str, project: str = "") -> Problem:
    """Classify an HTTP status of the API."""
    # Stockouts and quotas come with any of these.
    kind = _kind_of_message(message) if status in {400, 403, 429, 503} else None
    kind = kind or _kind_of_http(status)
    kind = "disabled" if kind == "forbidden" and _DISABLED.search(message) else kind
    hint = hint_for(kind, message, project)
    return Problem(kind, message or f"HTTP status {status}", hint, unanswered=status in _UNANSWERED)


def from_failed_call(error: Exception, project: str = "") -> Problem:
    """Classify what a call of a Google API has raised, also while its token was refreshed."""
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    if isinstance(error, AnswerError):
        return from_answer(error.status, error.body, project)
    if isinstance(error, RequestException):
        return from_connection_error(error)
    if isinstance(error, GoogleAuthError):
        return from_auth_error(error)
    return Problem("transient", f"the TPU API does not answer: {plain_reason(error)}", unanswered=True)


def from_answer(status: int, body: str, project: str = "") -> Problem:
    """Classify an HTTP answer that is no success, or that is not the API's: a proxy's or a captive portal's."""
    error = _error_of(body)
    if error is None:
        said = f": {one_line(body)[:300]}" if body else ""
        if status >= 500 or status in {408, 499}:
            return Problem("transient", f"the TPU API answered {status}{said}", unanswered=status in _UNANSWERED)
        return Problem("transient", f"unexpected response ({status}), not from the TPU API{said}", unanswered=True)
    message, name = str(error.get("message") or ""), str(error.get("status") or "")
    problem = from_http(status, message, project)
    if "SERVICE_DISABLED" in _reasons(error):
        return Problem("disabled", message, f"gcloud services enable tpu.googleapis.com --project {project}")
    if problem.kind == "missing" and name != "NOT_FOUND":
        # A 404 from a proxy or a wrong address does not mean that the resource is gone.
        return Problem("transient", f"unexpected response, not from the TPU API: {message}")
    if problem.kind == "transient":
        return replace(problem, message=f"the TPU API answered {status}" + (f": {message}" if message else ""))
    if name == "ABORTED" or (name == "FAILED_PRECONDITION" and problem.kind == "config"):
        return replace(problem, kind="busy")
    return problem


def from_auth_error(error: Exception) -> Problem:
    """Classify an error of google-auth. To be offline is not to be refused: the token could not even be asked for."""
    if getattr(error, "retryable", False) or is_offline(error) or _is_web_page(error):
        return Problem("transient", f"could not refresh the credentials: {plain_reason(error)}")
    return Problem("auth", f"credentials rejected: {plain_reason(error)}", LOGIN_COMMAND)


def is_offline(error: BaseException) -> bool:
    """Return whether an error, or one that it was made of, is of requests, urllib3, a socket or the system."""
    from google.auth.exceptions import TransportError
    from urllib3.exceptions import HTTPError

    seen: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, BaseException) or each in seen:
            continue
        if isinstance(each, (OSError, HTTPError, TransportError)):  # those of requests are OSErrors
            return True
        seen.append(each)
        waiting += [each.__cause__, each.__context__, getattr(each, "reason", None), *each.args]
    return False


def _is_web_page(error: Exception) -> bool:
    """Return whether a proxy or a captive portal has answered in place of the server that gives tokens."""
    return any(isinstance(arg, str) and arg.lstrip().lower().startswith(("<!doctype", "<html")) for arg in error.args)


def from_connection_error(error: RequestException) -> Problem:
    """Classify an error of the connection: the request was not sent, or its answer did not arrive."""
    from requests.exceptions import ConnectTimeout
    from urllib3.exceptions import MaxRetryError, NewConnectionError

    reason = error.args[0] if error.args else None
    reason = reason.reason if isinstance(reason, MaxRetryError) else reason
    url = urlsplit(str(error.request.url or "") if error.request is not None else "")
    address = f"{url.scheme}://{url.netloc}" if url.netloc else "the TPU API"
    if isinstance(error, ConnectTimeout):
        return Problem("transient", f"{address} cannot be reached: the connection timed out", ENDPOINT_HINT)
    if isinstance(reason, NewConnectionError):
        refused = "refused" in str(reason).lower()
        if refused and url.scheme == "http":  # an emulator's
            return Problem("transient", f"nothing listens at {address} (tpu.endpoint): {START_EMULATOR}")
        text = f"nothing listens at {address}" if refused else f"{address} cannot be reached"
        return Problem("transient", f"{text} (tpu.endpoint): {plain_reason(reason)}", ENDPOINT_HINT)
    return Problem("transient", f"the TPU API does not answer: {plain_reason(error)}", unanswered=True)


def one_line(error: object) -> str:
    """Return an error's text with its whitespace collapsed."""
    return " ".join(str(error).split())


def hint_for(kind: ProblemKind, message: str, project: str) -> str:
    """Return what the user can do about a problem; empty for those that tpux retries."""
    of_project = f" --project {project}" if project else ""
    if kind == "quota":
        return "request more on the console's quota page, delete TPUs that use it, or try another zone or pricing"
    if kind == "config":
        return "`tpux tpu types --zone ZONE` and `tpux tpu versions --zone ZONE` list what is available"
    if kind not in {"auth", "disabled", "forbidden"}:
        return ""
    if _DISABLED.search(message):
        return f"gcloud services enable tpu.googleapis.com{of_project}"
    if _NO_SUCH_ZONE.search(message):
        return f"check that the project may use that zone: gcloud compute tpus locations list{of_project}"
    if "credential" in message.lower() or "token" in message.lower():
        return LOGIN_COMMAND
    return f"check that you have the role roles/tpu.admin in the project, or use another account: {LOGIN_COMMAND}"


def _kind_of_http(status: int) -> ProblemKind:
    table: dict[int, ProblemKind] = {
        401: "auth", 403: "forbidden", 404: "missing", 409: "exists", 429: "throttled",
    }  # fmt: skip
    if status in table:
        return table[status]
    return "config" if 400 <= status < 500 and status not in {408, 499} else "transient"


def lacks_type(message: str) -> bool:
    """Return whether a refusal says that the zone has not the accelerator, even if its list of types has it."""
    return _NO_SUCH_TYPE.search(message) is not None


def _kind_of_message(message: str) -> ProblemKind | None:
    if _WRONG_STATE.search(message):
        return "busy"
    if _NO_ADDRESSES.search(message):
        return "quota-used"
    if _STOCKOUT.search(message) or _DISK_IN_USE.search(message):
        return "stockout"
    if _PER_MINUTE.search(message):
        return "throttled"
    if _QUOTA.search(message):
        return "quota" if _LIMIT_0.search(message) else "quota-used"
    return None


def _error_of(body: str) -> dict[str, object] | None:
    """Return the field `error` of an answer of the API, None if it has none."""
    try:
        content = json.loads(body)
    except ValueError:
        return None
    error = content.get("error") if isinstance(content, dict) else None
    return error if isinstance(error, dict) else None


def _reasons(error: dict[str, object]) -> set[str]:
    """Return the reasons in an error's details (google.rpc.ErrorInfo)."""
    details = error.get("details")
    each = [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
    return {str(detail.get("reason")) for detail in each}

"""One call of the API: how often it is tried, how long it may take, and what its error means."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from tpux_gcp.problems import LOGIN, CloudError, Problem, of_http

T = TypeVar("T")
_log = logging.getLogger(__name__)

# Real seconds. A step must not hold one of the supervisor's threads: what does not answer is asked again later.
TIMEOUT = 15.0
RETRY_FOR = 3.0
CREATE_TIMEOUT = 30.0
MINUTE = 60.0


@dataclass(frozen=True)
class Patience:
    """How long one call may take, and whether it is repeated when it fails in passing.

    A creation is not: the next step looks whether it was done.
    """

    timeout: float = TIMEOUT
    repeat: bool = True


READ = Patience()
CREATE = Patience(CREATE_TIMEOUT, repeat=False)

_throttled: dict[str, float] = {}
_lock = threading.Lock()


def call(method: Callable[..., T], request: object, project: str, patience: Patience = READ) -> T:
    """Call a method of google-cloud-tpu, which by itself neither repeats a call nor gives one up.

    Raises:
        CloudError: it did not succeed, and what that means. After a word that the project asks too often,
            nothing more is asked for a while (`throttled`).
    """
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    _hold_back(project)
    try:
        return method(request, retry=_retry() if patience.repeat else None, timeout=patience.timeout)
    except RetryError as error:
        raise CloudError(Problem("transient", _one_line(error.cause or error))) from error
    except GoogleAPICallError as error:
        problem = meaning(error, project)
        if problem.kind == "throttled":
            _note_throttled(project)
        raise CloudError(problem) from error
    except GoogleAuthError as error:
        raise CloudError(_auth_problem(error)) from error
    except RequestException as error:
        raise CloudError(Problem("transient", f"the TPU API does not answer: {_one_line(error)}")) from error


def _retry() -> object:
    from google.api_core.exceptions import BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable
    from google.api_core.retry import Retry, if_exception_type
    from requests.exceptions import ConnectionError as NoConnection

    # Not after a time-out: the step has taken long enough, and the next one asks again.
    passing = if_exception_type(BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable, NoConnection)
    return Retry(predicate=passing, initial=0.25, maximum=4.0, multiplier=2.0, timeout=RETRY_FOR)


def meaning(error: object, project: str) -> Problem:
    """What an error of google-api-core stands for, by the answer that it was made from."""
    from google.api_core.exceptions import GoogleAPICallError

    assert isinstance(error, GoogleAPICallError)  # noqa: S101
    status, message, name = _answer(error)
    if status is None:
        return Problem("transient", _one_line(error))
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
        return int(response.status_code), _one_line(response.text)[:300], ""


def _auth_problem(error: Exception) -> Problem:
    if getattr(error, "retryable", False):
        return Problem("transient", f"the credentials could not be refreshed: {_one_line(error)}")
    return Problem("auth", f"the credentials were refused: {_one_line(error)}", LOGIN)


def _hold_back(project: str) -> None:
    with _lock:
        left = _throttled.get(project, 0.0) - time.monotonic()
    if left > 0:
        raise CloudError(Problem("throttled", f"project {project} sends too many requests a minute"))


def _note_throttled(project: str) -> None:
    from tpux import clock_rate

    _log.info("project %s is throttled", project)
    with _lock:
        _throttled[project] = time.monotonic() + MINUTE / clock_rate()


def _one_line(error: object) -> str:
    return " ".join(str(error).split())

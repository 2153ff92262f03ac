"""Calls of the TPU API: timeouts, retries, and the pause of a minute after the project was throttled."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tpux.helpers import plain_reason
from tpux_gcp.errors import CloudError, Problem, from_api_error, from_auth_error, from_connection_error

if TYPE_CHECKING:
    from google.api_core.exceptions import RetryError
    from google.api_core.retry import Retry

T = TypeVar("T")
_log = logging.getLogger(__name__)

# Real seconds. A step must not block one of the supervisor's threads: the next step repeats an unanswered call.
TIMEOUT = 15.0
MUTATION_TIMEOUT = 30.0
RETRY_DEADLINE = 3.0
THROTTLE_PAUSE = 60.0


@dataclass(frozen=True)
class CallPolicy:
    """Timeout of one call in seconds, and whether transient errors are retried."""

    timeout: float = TIMEOUT
    retry: bool = True


DEFAULT = CallPolicy()
MUTATION = CallPolicy(MUTATION_TIMEOUT, retry=False)
"""For calls that create or change: not repeated blindly, the next step checks whether the call took effect."""

_throttled_until: dict[str, float] = {}
_lock = threading.Lock()


def invoke(method: Callable[..., T], request: object, project: str, policy: CallPolicy = DEFAULT) -> T:
    """Call a method of google-cloud-tpu, which by default neither retries nor times out.

    Raises:
        CloudError: the call failed. For a minute after a `throttled` error, every call for that project fails
            with another one, without a request being sent.
    """
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    _check_throttled(project)
    try:
        return method(request, retry=_retry() if policy.retry else None, timeout=policy.timeout)
    except RetryError as error:
        raise CloudError(_after_retries(error, project)) from error
    except GoogleAPICallError as error:
        problem = from_api_error(error, project)
        if problem.kind == "throttled":
            _mark_throttled(project)
        raise CloudError(problem) from error
    except GoogleAuthError as error:
        raise CloudError(from_auth_error(error)) from error
    except RequestException as error:
        raise CloudError(from_connection_error(error)) from error


def _after_retries(error: RetryError, project: str) -> Problem:
    """Classify the error of the last try: the outcome is unknown, and the next step repeats the call."""
    from google.api_core.exceptions import GoogleAPICallError
    from requests.exceptions import RequestException

    cause = error.cause
    if isinstance(cause, RequestException):
        return from_connection_error(cause)
    if isinstance(cause, GoogleAPICallError):
        return Problem("transient", from_api_error(cause, project).message, unanswered=True)
    return Problem("transient", f"the TPU API does not answer: {plain_reason(cause or error)}", unanswered=True)


def _retry() -> Retry:
    from google.api_core.exceptions import BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable
    from google.api_core.retry import Retry, if_exception_type
    from requests.exceptions import ConnectionError as NoConnection

    # Timeouts are not retried: the step has taken long enough, and the next one repeats the call.
    transient = if_exception_type(BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable, NoConnection)
    return Retry(predicate=transient, initial=0.25, maximum=4.0, multiplier=2.0, timeout=RETRY_DEADLINE)


def _check_throttled(project: str) -> None:
    with _lock:
        throttled = time.monotonic() < _throttled_until.get(project, 0.0)
    if throttled:
        raise CloudError(Problem("throttled", f"project {project} sends too many requests per minute"))


def _mark_throttled(project: str) -> None:
    from tpux.api import clock_rate

    _log.info("project %s is throttled", project)
    with _lock:
        _throttled_until[project] = time.monotonic() + THROTTLE_PAUSE / clock_rate()

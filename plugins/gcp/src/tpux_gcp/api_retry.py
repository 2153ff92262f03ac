"""One call of the API: how often it is tried and how long it may take."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tpux_gcp.errors import CloudError, Problem, auth_problem, meaning, one_line

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
        raise CloudError(Problem("transient", one_line(error.cause or error))) from error
    except GoogleAPICallError as error:
        problem = meaning(error, project)
        if problem.kind == "throttled":
            _note_throttled(project)
        raise CloudError(problem) from error
    except GoogleAuthError as error:
        raise CloudError(auth_problem(error)) from error
    except RequestException as error:
        raise CloudError(Problem("transient", f"the TPU API does not answer: {one_line(error)}")) from error


def _retry() -> object:
    from google.api_core.exceptions import BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable
    from google.api_core.retry import Retry, if_exception_type
    from requests.exceptions import ConnectionError as NoConnection

    # Not after a time-out: the step has taken long enough, and the next one asks again.
    passing = if_exception_type(BadGateway, GatewayTimeout, InternalServerError, ServiceUnavailable, NoConnection)
    return Retry(predicate=passing, initial=0.25, maximum=4.0, multiplier=2.0, timeout=RETRY_FOR)


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

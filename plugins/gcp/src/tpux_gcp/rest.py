"""One call of a Google API that has no client library here: OS Login, Compute Engine, Cloud Storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpux_gcp.credentials import credentials
from tpux_gcp.errors import CloudError, from_auth_error, from_connection_error
from tpux_gcp.project import Place

if TYPE_CHECKING:
    from requests import Response

TIMEOUT = 10.0


def call(place: Place, method: str, url: str, **options: object) -> Response:
    """Make one call, with the credentials of a place.

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
    except GoogleAuthError as error:
        raise CloudError(from_auth_error(error)) from error
    except RequestException as error:
        raise CloudError(from_connection_error(error)) from error

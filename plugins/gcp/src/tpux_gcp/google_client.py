"""Google's client library for Python, which only the commands of accounting need: an extra of the dist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpux import JsonValue, TpuxError, plain_reason
from tpux_gcp.credentials import credentials, is_emulator
from tpux_gcp.errors import LOGIN_COMMAND

if TYPE_CHECKING:
    from tpux_gcp.credentials import Place

Item = Mapping[str, JsonValue]
PATHS = {"compute": "compute/v1/", "storage": "storage/v1/", "bigquery": "bigquery/v2/"}
"""What follows the address of an API in its URLs."""


def ask(place: Place, api: str, version: str, resource: str, key: str, **arguments: str) -> Sequence[Item]:
    """Return all pages of a list that Google's client library for Python requests.

    Raises:
        TpuxError: the library is not installed, or the API refuses the call or does not answer.
    """
    return [item for page in pages(place, api, version, resource, key, **arguments) for item in page]


def pages(
    place: Place, api: str, version: str, resource: str, key: str, **arguments: str | bool
) -> Iterator[Sequence[Item]]:
    """Yield the pages of a list, each when it has been requested.

    Raises:
        TpuxError: the library is not installed, or the API refuses the call or does not answer.
    """
    with errors_of(api):
        methods = open_client(place, api, version)
        for name in resource.split("."):
            methods = getattr(methods, name)()
        request = methods.list(**arguments)  # type: ignore[attr-defined]
        while request is not None:
            answer = request.execute(num_retries=2)
            yield answer.get(key, [])
            request = methods.list_next(request, answer)  # type: ignore[attr-defined]


def open_client(place: Place, api: str, version: str) -> object:
    """Return the library's client of an API, whose methods are those of the API's description.

    Raises:
        TpuxError: the library is not installed, or there are no credentials.
    """
    try:
        from googleapiclient.discovery import build  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        hint = "pip install 'tpux-plugin-gcp[accounting]'"
        raise TpuxError("Google's client library is not installed", hint=hint) from error
    options = {"api_endpoint": f"{place.endpoint}/{PATHS.get(api, '')}"} if is_emulator(place.endpoint) else {}
    client: object = build(
        api, version, credentials=credentials(place), client_options=options, static_discovery=True, num_retries=2
    )
    return client


@contextmanager
def errors_of(api: str) -> Iterator[None]:
    """Raise what the library raises as an error that the command line prints.

    Raises:
        TpuxError: the API refuses the call or does not answer.
    """
    try:
        yield
    except (TpuxError, GeneratorExit):
        raise
    except Exception as error:  # the library's, of HTTP, or of the login
        hint = f"is the API enabled? gcloud services enable {api}.googleapis.com; or log in: {LOGIN_COMMAND}"
        raise TpuxError(f"{api}.googleapis.com: {plain_reason(error)[:300]}", hint=hint) from error


def items(data: Item, key: str) -> list[Item]:
    """Return the objects of a list in an answer."""
    found = data.get(key)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def inner(data: Item, key: str) -> Item:
    """Return an object in an answer; an empty one if it has none."""
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def label(data: Item, part: str, name: str) -> str:
    """Return a label of a time series; "" if it has none."""
    return str(inner(inner(data, part), "labels").get(name, ""))

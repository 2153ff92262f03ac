"""The access tokens of the VMs' service accounts, which the metadata server gives and the API checks."""

from __future__ import annotations

from tpux_emulator.cloud import views
from tpux_emulator.cloud.cloud import Cloud
from tpux_emulator.cloud.records import NodeRecord
from tpux_emulator.errors import ApiError, from_http

_PREFIX = "ya29.emulated-"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def token_of(node: NodeRecord) -> str:
    """Return the token that the metadata server of a node's workers gives."""
    return f"{_PREFIX}{node.uid}"


def account_of(cloud: Cloud, authorization: str) -> str:
    """Return the service account to whose token a request's header belongs; empty for any other header, or none.

    Raises:
        ApiError: 401 if the token's node is gone, 403 if its scopes do not include this API.
    """
    token = authorization.removeprefix("Bearer ")
    if not token.startswith(_PREFIX):
        return ""
    record = next((node for node in cloud.nodes.values() if token_of(node) == token), None)
    if record is None:
        raise from_http(401, "Request had invalid authentication credentials.")
    account = views.node(record, cloud.catalog).service_account
    if account is None or _SCOPE not in (account.scope or []):
        raise ApiError(7, "Request had insufficient authentication scopes.")
    return account.email or ""

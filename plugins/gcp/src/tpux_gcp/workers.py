"""The workers of a ready TPU: tpux's SSH keys on them, their addresses and host keys, and the notice of a preemption.

With OS Login, VMs ignore the `ssh-keys` of their metadata and ask for the keys in the profile of a user instead.
Source: "About OS Login", Compute Engine documentation, and the OS Login API v1 (users.importSshPublicKey).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tpux import Allocation, ProvisionRequest, Waiting, Worker
from tpux_gcp.credentials import Place, call, compute_url, is_google
from tpux_gcp.errors import CloudError, InvalidConfigError, Problem, from_http, from_status
from tpux_gcp.reports import NODE
from tpux_gcp.request import RequestContext
from tpux_gcp.resource import Location, Node, TpuResource
from tpux_gcp.spec import OS_LOGIN, SSH_KEYS, add_ssh_keys, os_login_enabled

if TYPE_CHECKING:
    from requests import Response

_log = logging.getLogger(__name__)
OS_LOGIN_ENDPOINT = "https://oslogin.googleapis.com"
# Asks the worker's metadata server: first for the current value, then for a change of it. That ends after 90 s, if the
# connection is lost or a maintenance was announced meanwhile; core runs it again, at once only after a minute or more.
# "Check if a VM was preempted" and "Query VM metadata", Compute Engine documentation.
# `GCE_METADATA_HOST` is the variable of Google's own libraries.
# Of a planned maintenance it waits for the window, less `tpu.maintenance_notice`, or until it is under way. "View
# maintenance notifications", Cloud TPU documentation; without one the server answers with an error, or with other JSON.
NOTICE = r"""
url=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance
etag=NONE timeout=90 planned=
[ -z "$lead" ] || planned=$(curl -sf --max-time 30 -H Metadata-Flavor:Google \
    "$url/upcoming-maintenance?alt=json&recursive=true") || planned=
field() { printf '%s' "$planned" | tr -d '\n' | sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p"; }
start=$(field windowStartTime)
case $(field maintenanceStatus) in
    ONGOING) echo 'the metadata server says that a maintenance is under way'; exit 0 ;;
esac
if [ -n "$start" ] && begins=$(date -d "$start" +%s 2>/dev/null); then
    left=$((begins - $(date +%s) - lead))
    if [ "$left" -le 0 ]; then echo "the metadata server says that a maintenance begins at $start"; exit 0; fi
    [ "$left" -ge "$timeout" ] || timeout=$left
fi
while :; do
    answer=$(curl -sfi --max-time $((timeout + 30)) -H Metadata-Flavor:Google \
        "$url/preempted?wait_for_change=true&timeout_sec=$timeout&last_etag=$etag") || exit 1
    case $answer in *TRUE) echo 'the metadata server says instance/preempted: TRUE'; exit 0 ;; esac
    [ "$etag" = NONE ] || exit 1
    etag=$(printf '%s\n' "$answer" | tr -d '\r' | sed -n 's/^[Ee][Tt][Aa][Gg]: *//p')
    [ -n "$etag" ] || exit 1
done
"""
MAX_PORT = 65535
Details = dict[str, str]
"""The details of a worker, for the transport."""


def build_allocation(
    context: RequestContext, resource: TpuResource, published: Callable[[RequestContext, Node], list[Details]]
) -> Allocation:
    """Return the machines of a ready TPU.

    Args:
        context: the step.
        resource: the TPU.
        published: returns what each worker of a node has published.
    """
    # Nobody else replaces machines that the job borrows: they would get the notice again and again.
    lead = "" if context.saved.borrowed else str(round(context.tpu.maintenance_notice))
    workers: list[Worker] = []
    for number, node in enumerate(resource.nodes):
        user = {"user": context.saved.os_login_user} if _uses_os_login(context, node) else {}
        first = {NODE: f"{node.zone}/{node.name}"}
        for endpoint, details in zip(node.endpoints, published(context, node), strict=True):
            address = endpoint.internal if context.tpu.internal_ips or not endpoint.external else endpoint.external
            workers.append(Worker(len(workers), number, address, endpoint.internal, {**details, **user, **first}))
            first = {}
    return Allocation(
        name=context.name,
        transport="ssh",
        workers=tuple(workers),
        slices=len(resource.nodes),
        zone=context.saved.zone,
        borrowed=context.saved.borrowed,
        notice=f"lead={lead}{NOTICE}",
        accelerator=context.saved.accelerator,
        # what the config says, or its default, is not that of a TPU that others have created
        pricing=resource.nodes[0].pricing if context.saved.borrowed else context.tpu.pricing,
    )


def published_or_nothing(context: RequestContext, node: Node) -> list[Details]:
    """Return what each worker has published; nothing if it is unknown: ssh then trusts the first host key."""
    try:
        return published_by(context, node)
    except CloudError as error:
        _log.info("no guest attributes of %s: %s", node.name, error)
        return [{}] * len(node.endpoints)


def published_by(context: RequestContext, node: Node) -> list[Details]:
    """Return what each worker has published: its host keys, its VM's name, and the port of its SSH server.

    The host keys are one `TYPE KEY` per line; the port is the guest attribute `ssh/port`.

    Raises:
        CloudError: the call failed.
    """
    location = context.saved.location
    published = context.api.guest_attributes(location, node.name)
    if len(published) != len(node.endpoints):
        return [{}] * len(node.endpoints)
    return [_details(attributes, location) for attributes in published]


def _details(attributes: Mapping[tuple[str, str], str], location: Location) -> Details:
    keys = sorted((kind, key) for (namespace, kind), key in attributes.items() if namespace == "hostkeys")
    names = [name for (_, key), name in attributes.items() if key == "hostname"]  # where gcloud looks for it
    instance = {"instance": names[0], "project": location.project, "zone": location.zone} if names else {}
    port = attributes.get(("ssh", "port"), "")  # by an emulator, or a startup script that has moved the SSH server
    published = {"port": port} if re.fullmatch(r"[1-9]\d{0,4}", port, re.ASCII) and int(port) <= MAX_PORT else {}
    return {
        **({"host_keys": "\n".join(f"{kind} {key}" for kind, key in keys)} if keys else {}),
        **instance,
        **published,
    }


def add_public_keys(context: RequestContext, resource: TpuResource) -> Waiting | None:
    """Add the public keys that are missing to the metadata of the nodes, one node per step.

    Where OS Login is enabled they are in the user's profile instead.

    Returns:
        The answer to wait for an update, or None once every node has the keys.

    Raises:
        InvalidConfigError: there is no account that could log in.
        CloudError: a call of the API failed.
    """
    keys, saved = context.request.public_keys, context.saved
    if not keys:
        return None
    if saved.metadata_operation and (operation := context.api.operation(saved.metadata_operation)) is not None:
        if not operation.done:
            return context.wait(f"adding public keys to {context.name}", 1)
        if operation.code:
            problem = from_status(operation.code, operation.message, saved.project)
            return context.update(metadata_operation="").retry_later(Problem("transient", problem.message))
    for node in resource.nodes:
        metadata = dict(node.metadata)
        if _uses_os_login(context, node):
            if not saved.os_login_user:
                imported = context.update(os_login_user=import_keys(context.request))
                return imported.wait(f"imported the public keys for {node.name}", 0)
        elif not set(keys) <= set(metadata.get(SSH_KEYS, "").splitlines()):
            updated = add_ssh_keys(metadata, keys)
            name = context.api.update_node(saved.location, node.name, "metadata", updated)
            return context.update(metadata_operation=name).wait(f"adding public keys to {node.name}", 1)
    return None


def _uses_os_login(context: RequestContext, node: Node) -> bool:
    enabled = os_login_enabled(node.metadata)
    return bool(context.saved.os_login_user) if enabled is None else enabled


# --- OS Login -------------------------------------------------------------------------------------


def os_login_enabled_in_project(place: Place) -> bool:
    """Return whether a project's common instance metadata enable OS Login; False if that cannot be read.

    `gcloud compute tpus tpu-vm ssh` makes the same call first (compute.projects.get). If the account may not make it, a
    worker that refuses the key reports it later.

    Raises:
        CloudError: there are no credentials.
    """
    try:
        url = compute_url(place, f"projects/{place.project}")
        answer = call(place, "GET", url, params={"fields": "commonInstanceMetadata"})
        items = answer.json().get("commonInstanceMetadata", {}).get("items", []) if answer.ok else []
        return bool(os_login_enabled({str(item["key"]): item["value"] for item in items}))
    except CloudError as error:
        if error.problem.kind == "auth":
            raise
        _log.info("cannot read whether project %s enables OS Login: %s", place.project, error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.info("project %s has unexpected metadata: %s", place.project, error)
    return False


def import_keys(request: ProvisionRequest) -> str:
    """Import the public keys into the profile of the credentials' account; return the login user."""
    account = str(request.resolved.get("login_account") or "")
    return _import_to_profile(Place.from_json(request.resolved), account, request.public_keys)


def _import_to_profile(place: Place, account: str, public_keys: Iterable[str]) -> str:
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
            f"run `gcloud auth login`, create the job again, or set tpu.metadata.{OS_LOGIN}: 'FALSE'",
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
    if problem.kind in {"disabled", "forbidden", "missing", "config"}:
        enable = f"gcloud services enable oslogin.googleapis.com --project {place.project}"
        hint = f"{enable}, and grant {account} roles/compute.osAdminLogin; or set tpu.metadata.{OS_LOGIN}: 'FALSE'"
        return Problem("disabled", f"cannot import tpux's key into the OS Login profile of {account}: {message}", hint)
    return problem

"""Whether the project demands OS Login, under which VMs do not look at the keys that tpux puts on them."""

from __future__ import annotations

import logging

from tpux import TpuSection
from tpux_gcp import spec
from tpux_gcp.api import Api
from tpux_gcp.login import credentials

_log = logging.getLogger(__name__)
COMPUTE = "https://compute.googleapis.com"
TIMEOUT = 10.0


def refuse_project_os_login(api: Api, tpu: TpuSection) -> None:
    """Refuse a project whose common instance metadata demand OS Login, unless the config's metadata say otherwise.

    It is the call that `gcloud compute tpus tpu-vm ssh` makes first (compute.projects.get). Who may not make
    it is not told anything: then a worker that refuses the key says so.

    Raises:
        RefusedError: it does.
        CloudError: there are no credentials.
    """
    if spec.OS_LOGIN in tpu.metadata:
        return
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from requests.exceptions import RequestException

    url = f"{api.endpoint or COMPUTE}/compute/v1/projects/{api.project}"
    try:
        with AuthorizedSession(credentials(api.endpoint)) as session:  # type: ignore[no-untyped-call]
            answer = session.get(url, params={"fields": "commonInstanceMetadata"}, timeout=TIMEOUT)
            items = answer.json().get("commonInstanceMetadata", {}).get("items", []) if answer.ok else []
        metadata = {str(item["key"]): str(item["value"]) for item in items}
    except (GoogleAuthError, RequestException, ValueError, KeyError, TypeError) as error:
        _log.info("whether project %s demands OS Login could not be seen: %s", api.project, error)
        return
    spec.refuse_os_login(metadata, f"project {api.project}")

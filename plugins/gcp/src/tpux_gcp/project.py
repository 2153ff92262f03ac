"""The endpoint, project, default zone and credentials: from the config, the environment or gcloud's configuration."""

from __future__ import annotations

import configparser
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tpux_gcp.errors import LOGIN_COMMAND, CloudError, InvalidConfigError, Problem, one_line
from tpux_gcp.validation import needs_credentials

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

ENDPOINT_VARIABLE = "TPUX_GCP_ENDPOINT"
EMULATOR_PROJECT = "emulated"
"""The project of configs that name none, at an emulator's endpoint; an emulator accepts any name."""
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_lock = threading.Lock()
_credentials: list[Credentials] = []


def api_endpoint(configured: str | None = None, saved: str = "") -> str:
    """Return the address of the TPU API, empty for Google's own.

    Args:
        configured: `tpu.endpoint`.
        saved: the endpoint that the request began with, so that a supervisor started from another shell never
            sends an emulated job to the real cloud.
    """
    return (configured or os.environ.get(ENDPOINT_VARIABLE) or saved).rstrip("/")


def is_emulator(endpoint: str) -> bool:
    """Return True for plain HTTP, over which no credentials must be sent."""
    return endpoint.startswith("http://")


def find_project(configured: str | None, endpoint: str) -> str:
    """Return the Google Cloud project.

    The order is gcloud's (`gcloud topic configurations`): the config, the environment, the active configuration.

    Raises:
        InvalidConfigError: no project is set anywhere.
    """
    project = (
        configured
        or os.environ.get("GOOGLE_CLOUD_PROJECT")
        or os.environ.get("CLOUDSDK_CORE_PROJECT")
        or _gcloud_property("core", "project")
        or (EMULATOR_PROJECT if is_emulator(endpoint) else "")
    )
    if not project:
        raise InvalidConfigError(
            "no Google Cloud project in tpu.project, the environment or gcloud's configuration",
            f"set tpu.project, or run: gcloud config set project PROJECT (and, to log in: {LOGIN_COMMAND})",
        )
    return project


def default_zone() -> str:
    """Return the default zone from the environment or gcloud's configuration, empty if none is set."""
    return os.environ.get("CLOUDSDK_COMPUTE_ZONE") or _gcloud_property("compute", "zone")


def credentials(endpoint: str) -> Credentials:
    """Return the credentials for an endpoint: Application Default Credentials, anonymous ones for loopback.

    They are loaded once per process and refreshed by google-auth. After a failure the next call tries again.

    Raises:
        CloudError: there are none, they cannot be read, or the endpoint's host must not receive them.
    """
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError

    if not needs_credentials(endpoint):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    with _lock:
        if not _credentials:
            try:
                found, _ = google.auth.default(scopes=SCOPES)
            except GoogleAuthError as error:
                message = f"no Google Cloud credentials: {one_line(error)}"
                raise CloudError(Problem("auth", message, LOGIN_COMMAND)) from error
            _credentials.append(found)
        return _credentials[0]


def _gcloud_property(section: str, name: str) -> str:
    """Return a property of gcloud's active configuration, empty if it is not set.

    The files are `active_config` and `configurations/config_NAME` in `$CLOUDSDK_CONFIG`, by default
    `~/.config/gcloud` (googlecloudsdk/core/config.py, as google-auth's `_cloud_sdk.get_config_path` has it).
    """
    home = Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
    active = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME")
    try:
        active = active or (home / "active_config").read_text(encoding="utf-8").strip()
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(home / "configurations" / f"config_{active}", encoding="utf-8")
        return parser.get(section, name, fallback="")
    except (OSError, UnicodeDecodeError, configparser.Error):
        return ""  # gcloud is not set up, or its files are unreadable: the caller says what to configure

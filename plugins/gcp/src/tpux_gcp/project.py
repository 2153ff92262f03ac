"""Which cloud, project and zone, and the credentials: from the config, the environment, or gcloud's configuration."""

from __future__ import annotations

import configparser
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tpux_gcp.errors import LOGIN, CloudError, Problem, mistake

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

ENDPOINT = "TPUX_GCP_ENDPOINT"
EMULATED = "emulated"
"""The project of those that name none where the endpoint is an emulator; it takes any name."""
SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_lock = threading.Lock()
_found: list[Credentials] = []


def endpoint(given: str | None = None, remembered: str = "") -> str:
    """The address of the TPU API where it is not Google's own, else empty.

    What a request began with is remembered: an emulated one must never end at the real cloud because a
    supervisor was started from another shell.
    """
    return (given or os.environ.get(ENDPOINT) or remembered).rstrip("/")


def is_emulator(address: str) -> bool:
    """Whether nobody has to log in there: plain HTTP, where credentials must not be sent."""
    return address.startswith("http://")


def project(given: str | None, address: str) -> str:
    """The Google Cloud project.

    The order is gcloud's (`gcloud topic configurations`): what is given, the environment, the active configuration.

    Raises:
        RefusedError: there is none, and how one is set.
    """
    named = (
        given
        or os.environ.get("GOOGLE_CLOUD_PROJECT")
        or os.environ.get("CLOUDSDK_CORE_PROJECT")
        or gcloud_property("core", "project")
        or (EMULATED if is_emulator(address) else "")
    )
    if not named:
        raise mistake(
            "no Google Cloud project: neither tpu.project nor the environment nor gcloud names one",
            f"set tpu.project, or run: gcloud config set project PROJECT (and, to log in: {LOGIN})",
        )
    return named


def zone() -> str:
    """The default zone of the environment or of gcloud's configuration, empty where there is none."""
    return os.environ.get("CLOUDSDK_COMPUTE_ZONE") or gcloud_property("compute", "zone")


def gcloud_property(section: str, name: str) -> str:
    """A property of gcloud's active configuration, read from its files; empty where it is not set.

    The files are `active_config` and `configurations/config_NAME` below `$CLOUDSDK_CONFIG`, by default
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
        return ""  # gcloud is not set up here, or not in a way that one can read: the caller says what to do


def credentials(endpoint: str) -> Credentials:
    """What requests to this endpoint are signed with.

    Application Default Credentials are looked for once a process and shared: google-auth refreshes them
    as they expire. Where there are none they are looked for again at the next call.

    Raises:
        CloudError: there are none, or they cannot be read; the hint says which command logs in.
    """
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError

    if is_emulator(endpoint):
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    with _lock:
        if not _found:
            try:
                found, _ = google.auth.default(scopes=SCOPES)
            except GoogleAuthError as error:
                said = " ".join(str(error).split())
                raise CloudError(Problem("auth", f"no Google Cloud credentials: {said}", LOGIN)) from error
            _found.append(found)
        return _found[0]

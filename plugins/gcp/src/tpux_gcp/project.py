"""Finds a job's place once in the config, the environment and gcloud: endpoint, project, default zone and login.

`find_place` is called by the hook `resolve` and by `tpux tpu`, and alone reads the environment. All else is given the
`Place` that was stored with the job (`credentials.py`), so that it does not matter which shell started the supervisor.
"""

from __future__ import annotations

import configparser
import getpass
import json
import os
import re
import socket
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from tpux import UsageError
from tpux.api import say
from tpux_gcp.credentials import GOOGLE_ENDPOINT, SCOPES, Place, account_of, is_emulator, is_google
from tpux_gcp.errors import LOGIN_COMMAND

ENDPOINT_VARIABLE = "TPUX_GCP_ENDPOINT"
STORAGE_ENDPOINT_VARIABLE = "TPUX_GCP_STORAGE_ENDPOINT"
"""An emulator of Cloud Storage, for output directories gs://; no credentials are sent to it."""
ALLOWED_HOSTS_VARIABLE = "TPUX_GCP_ALLOWED_HOSTS"
"""Hosts besides Google's to which credentials may be sent, separated by commas or blanks."""
# Only these characters: URL parsers read others differently (the host of `https://a.com\@b.com` is a.com or b.com).
_ENDPOINT = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:\d+)?(/[\w./-]*)?")
EMULATOR_PROJECT = "emulated"
"""The project of configs that name none, at an emulator's endpoint; an emulator accepts any name."""
EMULATOR_ACCOUNT = "tpux@example.com"
"""The account at an emulator's endpoint if none is known."""
EMULATOR_ZONE = "us-central2-b"
"""The default zone of commands that use it."""
EMULATOR_USER = "tpux"
"""The login user on an emulator's workers if this shell's is root, and no account is known."""
_LOGIN = re.compile(r"[A-Za-z0-9_][-._A-Za-z0-9]{0,31}")
METADATA_SERVERS = ("metadata.google.internal", "169.254.169.254")


def find_place(project: str | None = None, endpoint: str | None = None) -> Place:
    """Return the place that this shell stands for.

    Args:
        project: `tpu.project`, or a command's `--project`.
        endpoint: `tpu.endpoint`.

    Raises:
        UsageError: the environment names another endpoint, or credentials must not be sent to it.
    """
    address = _find_endpoint(endpoint)
    storage = os.environ.get(STORAGE_ENDPOINT_VARIABLE, "").rstrip("/")
    place = Place(
        _find_project(project, address), _default_zone(), address, endpoint_allowed=True, storage_endpoint=storage
    )
    return place if is_emulator(address) else _with_login(place)


def find_place_for_command(project: str | None) -> Place:
    """Return the place of a command without a config, `tpux tpu`: like `find_place`, or this user's running emulator.

    The emulator is meant where neither `--project` nor the environment names a place; its use is said.

    Raises:
        UsageError: credentials must not be sent to the environment's endpoint.
    """
    emulator = "" if project or os.environ.get(ENDPOINT_VARIABLE) else _running_emulator()
    if not emulator:
        return find_place(project)
    _say_emulator(emulator)
    zone = os.environ.get("CLOUDSDK_COMPUTE_ZONE") or EMULATOR_ZONE
    return Place(EMULATOR_PROJECT, zone, emulator, endpoint_allowed=True)


@cache
def _say_emulator(url: str) -> None:
    """Say once that no request goes to Google."""
    say(f"using the emulator at {url}; for Google's API: export {ENDPOINT_VARIABLE}={GOOGLE_ENDPOINT}")


def _running_emulator() -> str:
    """Return the address of the emulator that `tpux emulator start` has started for this user, "" if none answers."""
    home = os.environ.get("TPUX_EMULATOR_HOME") or f"{os.environ.get('TPUX_HOME') or '~/.tpux'}/emulator"
    try:
        url = str(json.loads((Path(home).expanduser() / "server.json").read_text(encoding="utf-8"))["url"])
        address = urlsplit(url)
        socket.create_connection((address.hostname or "", address.port or 0), 1.0).close()
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return url


def _find_endpoint(configured: str | None) -> str:
    of_config, of_shell = (
        _with_scheme(address) for address in (configured or "", os.environ.get(ENDPOINT_VARIABLE, ""))
    )
    if of_config and of_shell and of_config != of_shell:
        raise UsageError(
            f"the config names the endpoint {of_config}, and ${ENDPOINT_VARIABLE} is {of_shell}",
            where="tpu.endpoint",
            hint=f"remove the key, or unset {ENDPOINT_VARIABLE}",
        )
    endpoint = of_config or of_shell or GOOGLE_ENDPOINT
    if not _ENDPOINT.fullmatch(endpoint):
        hint = f"for example {GOOGLE_ENDPOINT}"
        raise UsageError(f"invalid endpoint {endpoint!r}", where="tpu.endpoint", hint=hint)
    allowed = os.environ.get(ALLOWED_HOSTS_VARIABLE, "").lower().replace(",", " ").split()
    host = urlsplit(endpoint).hostname or ""
    if not (is_emulator(endpoint) or is_google(endpoint) or host in allowed):
        raise UsageError(
            f"credentials are sent to Google's hosts only, and the endpoint is {endpoint}",
            where="tpu.endpoint",
            hint=f"if you trust this host, set {ALLOWED_HOSTS_VARIABLE}={host or 'HOST'}",
        )
    return endpoint


def _with_scheme(address: str) -> str:
    return (address if "://" in address or not address else f"https://{address}").rstrip("/")


def _find_project(configured: str | None, endpoint: str) -> str:
    """Return the project, in gcloud's order (`gcloud topic configurations`); empty if none is set."""
    return (
        configured
        or os.environ.get("GOOGLE_CLOUD_PROJECT")
        or os.environ.get("CLOUDSDK_CORE_PROJECT")
        or _gcloud_property("core", "project")
        or (EMULATOR_PROJECT if is_emulator(endpoint) else "")
    )


def _default_zone() -> str:
    return os.environ.get("CLOUDSDK_COMPUTE_ZONE") or _gcloud_property("compute", "zone")


def _with_login(place: Place) -> Place:
    """Return the place with the Application Default Credentials, which are looked for as `google.auth.default` does.

    The order is: $GOOGLE_APPLICATION_CREDENTIALS, the file that gcloud writes, the metadata server.

    Raises:
        UsageError: they come from a metadata server that the supervisor cannot use.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    place = replace(place, quota_project=os.environ.get("GOOGLE_CLOUD_QUOTA_PROJECT", ""))
    of_gcloud = _gcloud_directory() / "application_default_credentials.json"
    if file := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or (str(of_gcloud) if of_gcloud.is_file() else ""):
        path = Path(file).absolute()
        return replace(place, login="file", file=str(path), account=account_of(path))
    try:
        google.auth.default(scopes=SCOPES)
    except GoogleAuthError:
        return place  # preflight reports it
    server = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_ROOT") or METADATA_SERVERS[0]
    if server not in METADATA_SERVERS:
        raise UsageError(
            f"credentials come from the metadata server {server}, which the supervisor cannot use",
            where="GCE_METADATA_HOST",
            hint=f"unset GCE_METADATA_HOST, or run: {LOGIN_COMMAND}",
        )
    return replace(place, login="metadata-server")


def find_login(place: Place) -> str:
    """Return the login user of the workers where this shell's own user name cannot be used; else an empty string.

    gcloud then uses the name of its account (`GetDefaultSshUsername`). It does not for root, whom Google's images
    refuse.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    if user != "root" and _LOGIN.fullmatch(user):
        return ""
    account = _gcloud_property("core", "account") or find_account(place)
    name = re.sub("[^a-z0-9]", "_", account.partition("@")[0].lower())  # gaia.MapGaiaEmailToDefaultAccountName
    if name and not name[0].isalpha():
        name = f"g{name}"
    return name[:32]


def find_account(place: Place) -> str:
    """Return the account of the credentials, else the one that gcloud uses; empty if neither is known."""
    account = place.account or _gcloud_property("core", "account")
    return account or (EMULATOR_ACCOUNT if is_emulator(place.endpoint) else "")


def _gcloud_directory() -> Path:
    """Return gcloud's configuration directory (google-auth's `_cloud_sdk.get_config_path`)."""
    return Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()


def _gcloud_property(section: str, name: str) -> str:
    """Return a property of gcloud's active configuration, empty if it is not set.

    The files are `active_config` and `configurations/config_NAME` (googlecloudsdk/core/config.py).
    """
    home, active = _gcloud_directory(), os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME")
    try:
        active = active or (home / "active_config").read_text(encoding="utf-8").strip()
        parser = configparser.ConfigParser(interpolation=None)
        parser.read(home / "configurations" / f"config_{active}", encoding="utf-8")
        return parser.get(section, name, fallback="")
    except (OSError, UnicodeDecodeError, configparser.Error):
        return ""  # gcloud is not set up, or its files are unreadable: the caller says what to configure

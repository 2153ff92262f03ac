"""What a request is authenticated with: a token or a client certificate, read again when the API refuses it."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from tpux import TpuxError, plain_reason
from tpux_gke import cluster as clusters
from tpux_gke.cluster import Cluster
from tpux_gke.objects import Object, part, parts, seconds_of, text

_TIMEOUT = 60.0
"""Seconds that a kubeconfig's exec plugin may take."""
_MARGIN = 60.0
"""Seconds before its end at which a token is renewed."""
_REREAD = 60.0
"""Seconds for which a token of a file is used: a pod's is replaced before it expires."""
_HINT = "log in again: kubectl get pods must work, with the context of the job"


@dataclass(frozen=True)
class Credential:
    """What one user has.

    Attributes:
        token: the bearer token; "" without one.
        certificate: the client certificate and its key, as PEM; "" without one.
        key: the key.
        expires: when it must be read again, in seconds since the epoch; None if it stays.
    """

    token: str = ""
    certificate: str = ""
    key: str = ""
    expires: float | None = None


class Login:
    """The login to a cluster; any thread may use it.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._found: Credential | None = None

    def credential(self) -> Credential:
        """Return what requests are authenticated with.

        Raises:
            TpuxError: there is nothing, such as because the user must log in again.
        """
        with self._lock:
            found = self._found
        if found is None or (found.expires is not None and time.time() >= found.expires):
            found = self._read()  # the lock is not held meanwhile: it may ask a server
            with self._lock:
                self._found = found
        return found

    def token(self) -> str:
        """Return the bearer token, "" without one.

        Raises:
            TpuxError: there is no login, or everybody on the way to the server could read the token.
        """
        address = urlsplit(self._cluster.server)
        token = self.credential().token
        if token and address.scheme != "https" and not _is_loopback(address.hostname or ""):
            message = f"{self._cluster.server} is not https: a token is not sent to it, as others could read it"
            raise TpuxError(message, hint="the server of the kubeconfig's cluster must be https, or on this machine")
        return token

    def forget(self) -> None:
        """Read it again the next time: the API has refused it."""
        with self._lock:
            self._found = None

    def tls(self) -> ssl.SSLContext | None:
        """Return how to verify the server, with the client certificate; None for a server without TLS."""
        cluster = self._cluster
        if not cluster.server.startswith("https:"):
            return None
        context = ssl.create_default_context(cadata=cluster.ca or None)
        if cluster.ca:  # many clusters' own CA lacks what Python 3.13 wants by default, and kubectl does not
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if cluster.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        own = self.credential()
        if own.certificate:
            with tempfile.NamedTemporaryFile("w", prefix="tpux-") as file:  # mode 0600; ssl reads files only
                file.write(f"{own.certificate}\n{own.key}\n")
                file.flush()
                context.load_cert_chain(file.name)
        return context

    def _read(self) -> Credential:
        cluster = self._cluster
        if cluster.google:
            return _of_google(cluster)
        if cluster.in_pod:
            return Credential(_token_file(clusters.POD_FILES / "token"), expires=_soon())
        if not cluster.kubeconfig:
            return Credential()
        user = clusters.entry(clusters.kubeconfig(cluster.kubeconfig), "user", cluster.user)
        if part(user, "exec"):
            return _of_plugin(part(user, "exec"), cluster)
        if file := text(user, "tokenFile"):
            return Credential(_token_file(Path(file)), expires=_soon())
        certificate, key = (clusters.file_content(user, name) for name in ("client-certificate", "client-key"))
        return Credential(text(user, "token"), certificate, key)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _soon() -> float:
    return time.time() + _REREAD


def _token_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise TpuxError(f"cannot read the token {path}: {plain_reason(error)}", hint=_HINT) from error


def _of_plugin(spec: Object, cluster: Cluster) -> Credential:
    """Run the exec plugin of a kubeconfig, such as gke-gcloud-auth-plugin, in the environment of the job's shell."""
    given = {name: str(value) for name, value in cluster.variables.items()}
    own = {text(one, "name"): text(one, "value") for one in parts(spec, "env")}
    version = text(spec, "apiVersion") or "client.authentication.k8s.io/v1"
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    variables = {"PATH": os.defpath, **given, **own, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    command = text(spec, "command")
    if (program := shutil.which(command, path=variables["PATH"])) is None:
        hint = text(spec, "installHint") or "gcloud components install gke-gcloud-auth-plugin"
        raise TpuxError(f"the kubeconfig's {command} is not in PATH ({variables['PATH']})", hint=hint)
    arguments = spec.get("args")
    argv = [program, *(str(one) for one in arguments)] if isinstance(arguments, list) else [program]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
            env=variables,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TpuxError(f"{command}: {plain_reason(error)}", hint=_HINT) from error
    try:
        status = part(cast("Object", json.loads(done.stdout)), "status") if not done.returncode else {}
    except (ValueError, AttributeError):
        status = {}
    if not text(status, "token") and not text(status, "clientCertificateData"):
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}, and no token"])[-1]
        raise TpuxError(f"{command}: {said}", hint=_HINT)
    ends = seconds_of(text(status, "expirationTimestamp"))
    return Credential(
        text(status, "token"),
        text(status, "clientCertificateData"),
        text(status, "clientKeyData"),
        expires=None if ends is None else ends - _MARGIN,
    )


def _of_google(cluster: Cluster) -> Credential:
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    from tpux_gcp.credentials import Place, credentials
    from tpux_gcp.errors import LOGIN_COMMAND, CloudError

    try:
        found = credentials(Place.from_json(cluster.google))
        if not found.valid:
            found.refresh(Request())  # type: ignore[no-untyped-call]
    except CloudError as error:
        raise TpuxError(error.problem.message, hint=error.problem.hint) from error
    except GoogleAuthError as error:
        raise TpuxError(f"no Google Cloud credentials: {plain_reason(error)}", hint=LOGIN_COMMAND) from error
    return Credential(str(found.token), expires=time.time() + _MARGIN)  # google-auth itself says when it is not valid

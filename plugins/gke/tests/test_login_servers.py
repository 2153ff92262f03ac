"""Logins at a server with TLS that checks them: client certificates, a pod's service account, Google's."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tpux import JsonValue
from tpux_emulator.kubernetes.certificates import Certificates, make_certificates
from tpux_gcp.credentials import Place
from tpux_gke import cluster as clusters
from tpux_gke.client import ApiError, Client
from tpux_gke.cluster import Cluster, find, stored
from tpux_gke.login import Login
from tpux_gke.objects import name_of
from tpux_gke.section import GkeTpuSection

pytestmark = pytest.mark.process
TPU = GkeTpuSection.model_validate({"accelerator": "v6e-16", "image": "python"})


@dataclass
class Server:
    """A server on 127.0.0.2, for which its certificate is not made; `token` is what it wants, "" for a certificate."""

    port: int
    files: Certificates
    directory: Path
    token: str = ""
    seen: list[str] = field(default_factory=list)

    def config(self, user: JsonValue, **cluster: JsonValue) -> Path:
        """Write a kubeconfig."""
        here: JsonValue = {
            "server": f"https://127.0.0.2:{self.port}",
            "certificate-authority": str(self.files.authority),
            "tls-server-name": "localhost",
            **cluster,
        }
        content: JsonValue = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": here}],
            "users": [{"name": "u", "user": user}],
        }
        path = self.directory / "config"
        path.write_text(json.dumps(content))
        return path

    def certificate(self, name: str) -> tuple[str, str]:
        """Return a certificate of the CA for a user, and its key, as PEM."""
        key, out = self.directory / f"{name}.key", self.directory / f"{name}.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += [
            "-days",
            "1",
            "-CA",
            str(self.files.authority),
            "-CAkey",
            str(self.files.authority.parent / "ca.key"),
        ]
        command += [
            "-subj",
            f"/CN={name}",
            "-keyout",
            str(key),
            "-out",
            str(out),
            "-addext",
            "basicConstraints=CA:FALSE",
        ]
        subprocess.run(command, check=True, capture_output=True)
        return out.read_text(), key.read_text()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Start a server, in a shell without a kubeconfig."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    made = Server(0, make_certificates(tmp_path), tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            peer = cast("ssl.SSLSocket", self.connection).getpeercert() or {}
            subject = cast("tuple[tuple[tuple[str, str]]]", peer.get("subject", ()))
            who = subject[0][0][1] if subject else self.headers.get("Authorization", "")
            made.seen.append(who)
            good = bool(subject) if not made.token else who == f"Bearer {made.token}"
            found = {"kind": "PodList", "metadata": {}, "items": [{"metadata": {"name": who}}]}
            self.send_response(200 if good else 401)
            self.end_headers()
            self.wfile.write(json.dumps(found if good else {"kind": "Status", "message": "who?"}).encode())

        def log_message(self, *_: object) -> None:
            pass

    http = HTTPServer(("127.0.0.2", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.files.certificate, made.files.key)
    tls.load_verify_locations(made.files.authority)
    tls.verify_mode = ssl.CERT_OPTIONAL
    http.socket = tls.wrap_socket(http.socket, server_side=True)
    made.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    yield made
    http.shutdown()
    thread.join()
    http.server_close()


def user_seen(tpu: GkeTpuSection) -> str:
    """Return who the server takes the job of a config for."""
    client = Client(stored(find(tpu).to_json()))
    return name_of(client.items("api/v1/pods")[0])


def test_client_certificate(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a file, relative to the kubeconfig, or data; a server that wants one refuses others."""
    _, key = server.certificate("alice")
    encoded = base64.b64encode(key.encode()).decode()
    path = server.config({"client-certificate": "alice.pem", "client-key-data": encoded})
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert user_seen(TPU) == "alice"
    server.config({})
    with pytest.raises(ApiError, match="401: who"):
        user_seen(TPU)


def test_certificates_of_an_old_cluster(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 and later refuse some by default that kubectl accepts, such as a CA without key usage."""
    ca, leaf = server.directory / "old-ca", server.directory / "old"
    new = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    ]
    for path, more in (
        (ca, ["-subj", "/CN=old"]),
        (
            leaf,
            [
                "-subj",
                "/CN=c",
                "-addext",
                "subjectAltName=IP:127.0.0.2",
                "-CA",
                f"{ca}.pem",
                "-CAkey",
                f"{ca}.key",
            ],
        ),
    ):
        subprocess.run([*new, "-keyout", f"{path}.key", "-out", f"{path}.pem", *more], check=True, capture_output=True)
    default = ssl.create_default_context

    def strict(*, cadata: str | None = None) -> ssl.SSLContext:
        context = default(cadata=cadata)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    context = Login(Cluster("https://127.0.0.2", ca=Path(f"{ca}.pem").read_text())).tls()
    assert context is not None
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(f"{leaf}.pem", f"{leaf}.key")
    to_us, to_them = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_us, to_them, server_hostname="127.0.0.2")
    other = theirs.wrap_bio(to_them, to_us, server_side=True)
    for side in (ours, other, ours, other, ours):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert ours.getpeercert()
    system = Login(Cluster("https://127.0.0.2")).tls()
    assert system is not None
    assert system.verify_flags & ssl.VERIFY_X509_STRICT


def test_name_in_the_certificate_of_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `tls-server-name` the server's certificate is another one's."""
    server.certificate("alice")
    user: JsonValue = {"client-certificate": "alice.pem", "client-key": "alice.key"}
    monkeypatch.setenv("KUBECONFIG", str(server.config(user, **{"tls-server-name": ""})))
    with pytest.raises(ApiError, match="certificate verify failed"):
        user_seen(TPU)
    server.config(user)
    assert user_seen(TPU) == "alice"


def test_exec_plugin_with_certificates(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one is used once the old one has expired, also for a connection that is open."""
    answers = []
    for name, ends in (("bob", "2020-01-01T00:00:00Z"), ("carol", "2099-01-01T00:00:00Z")):
        certificate, key = server.certificate(name)
        status = {"clientCertificateData": certificate, "clientKeyData": key, "expirationTimestamp": ends}
        answers.append(json.dumps({"kind": "ExecCredential", "status": status}))
    program = server.directory / "login"
    program.write_text('#!/bin/sh\ncd "${0%/*}"; cat answer\n')
    program.chmod(0o755)
    monkeypatch.setenv("KUBECONFIG", str(server.config({"exec": {"command": "./login"}})))
    (server.directory / "answer").write_text(answers[0])
    client = Client(stored(find(TPU).to_json()))
    assert name_of(client.items("api/v1/pods")[0]) == "bob"
    (server.directory / "answer").write_text(answers[1])
    assert name_of(client.items("api/v1/pods")[0]) == "carol"


def test_service_account_of_a_pod(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token is replaced in the file, and read again when the API refuses the old one."""
    files = server.directory / "serviceaccount"
    files.mkdir()
    (files / "token").write_text("first\n")
    (files / "namespace").write_text("team\n")
    (files / "ca.crt").write_text(server.files.authority.read_text())
    monkeypatch.setattr(clusters, "POD_FILES", files)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.2")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    cluster = find(TPU)
    assert (cluster.in_pod, cluster.namespace, cluster.kubeconfig) == (True, "team", "")
    client = Client(stored({**cluster.to_json(), "tls_name": "localhost"}))
    server.token = "first"
    assert name_of(client.items("api/v1/pods")[0]) == "Bearer first"
    server.token = "second"
    (files / "token").write_text("second\n")
    assert name_of(client.items("api/v1/pods")[0]) == "Bearer second"
    assert server.seen == ["Bearer first", "Bearer first", "Bearer second"]
    assert "first" not in json.dumps(cluster.to_json())


def test_cluster_by_its_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """GKE's own API says where it is, and the login is that of the plugin gcp; no kubeconfig is read."""
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    server.token = "of Google"
    ca = base64.b64encode(server.files.authority.read_bytes()).decode()
    asked: list[str] = []

    def call(place: Place, method: str, url: str) -> object:
        asked.append(f"{method} {url}")
        found = {"endpoint": f"127.0.0.2:{server.port}", "masterAuth": {"clusterCaCertificate": ca}}
        return SimpleNamespace(ok=True, json=lambda: found)

    login = SimpleNamespace(valid=False, token="")
    login.refresh = lambda _: setattr(login, "token", "of Google")
    monkeypatch.setattr("tpux_gcp.project.find_place", lambda project: Place(project, endpoint_allowed=True))
    monkeypatch.setattr("tpux_gcp.credentials.call", call)
    monkeypatch.setattr("tpux_gcp.credentials.credentials", lambda _: login)
    cluster = find(TPU.model_copy(update={"cluster": "c", "location": "europe-west4", "project": "p"}))
    assert asked == ["GET https://container.googleapis.com/v1/projects/p/locations/europe-west4/clusters/c"]
    assert cluster.context == "gke_p_europe-west4_c"
    client = Client(stored({**cluster.to_json(), "tls_name": "localhost"}))
    assert name_of(client.items("api/v1/pods")[0]) == "Bearer of Google"

"""A real docker daemon with nothing but a registry on loopback, and workers that use it."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

# pytest's importlib mode does not add the tests' helper modules to sys.path.
sys.path.insert(0, str(Path(__file__).parent / "support"))

from docker_support import RUNTIME, SYSTEM_PATH, image_layer

_ERRORS = {
    401: ("UNAUTHORIZED", "authentication required"),
    403: ("DENIED", 'Permission "downloadArtifacts" denied on resource (or it may not exist)'),
    404: ("MANIFEST_UNKNOWN", "manifest unknown"),
}


@dataclass
class Registry:
    """A registry of images on loopback with one image, `train:v1`. It first answers with the given errors."""

    errors: list[int] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    port: int = 0
    contents: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    @property
    def image(self) -> str:
        return f"127.0.0.1:{self.port}/train:v1"

    def start(self) -> ThreadingHTTPServer:
        layer = image_layer()
        packed = gzip.compress(layer, 1)
        rootfs = {"type": "layers", "diff_ids": [_digest(layer)]}
        settings = {"Env": ["PATH=/usr/bin", "FROM_IMAGE=yes"], "WorkingDir": "/work"}
        architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
        image = json.dumps({"architecture": architecture, "os": "linux", "rootfs": rootfs, "config": settings}).encode()
        docker = "application/vnd.docker"
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{docker}.distribution.manifest.v2+json",
            "config": self._add(f"{docker}.container.image.v1+json", image),
            "layers": [self._add(f"{docker}.image.rootfs.diff.tar.gzip", packed)],
        }
        self._add(manifest["mediaType"], json.dumps(manifest).encode(), "v1")
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self)

            do_HEAD = do_GET  # noqa: N815  (named by BaseHTTPRequestHandler)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def _add(self, kind: str, content: bytes, name: str = "") -> dict[str, object]:
        digest = _digest(content)
        self.contents[digest] = self.contents[name or digest] = kind, content
        return {"mediaType": kind, "size": len(content), "digest": digest}

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        known = request.path.startswith(("/v2/train/manifests/", "/v2/train/blobs/"))
        kind, content = self.contents.get(request.path.rpartition("/")[2], ("", b"")) if known else ("", b"")
        code = 200 if kind or request.path == "/v2/" else 404
        if self.errors and (request.path != "/v2/" or self.errors[0] == 401):
            code = self.errors.pop(0)
        if code != 200:
            error, message = _ERRORS.get(code, ("UNAVAILABLE", "the registry is busy"))
            kind, content = "application/json", json.dumps({"errors": [{"code": error, "message": message}]}).encode()
        request.send_response(code)
        if code == 401:
            request.send_header("WWW-Authenticate", 'Basic realm="images"')
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(content)))
        request.send_header("Docker-Content-Digest", _digest(content))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(content)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Daemon:
    """A docker daemon.

    Attributes:
        path: PATH of workers that use it.
        client: the client's command line.
    """

    path: str
    client: list[str]
    registry: Registry

    @property
    def image(self) -> str:
        return self.registry.image

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run([*self.client, *arguments], capture_output=True, text=True, timeout=60)
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()

    def containers(self) -> list[str]:
        """Return the names of all containers, also of those that have ended."""
        return self("ps", "--all", "--format", "{{.Names}}").split()


def _write_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def _start_daemon(directory: Path, program: str) -> subprocess.Popen[bytes]:
    _write_program(directory / "runtime", RUNTIME)
    socket = f"unix://{directory}/socket"
    places = [f"--data-root={directory}/data", f"--exec-root={directory}/exec", f"--pidfile={directory}/pid"]
    network = ["--iptables=false", "--ip6tables=false", "--bridge=none"]
    runtimes = [f"--add-runtime=tests={directory}/runtime", "--default-runtime=tests"]
    with (directory / "log").open("wb") as log:
        return subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "TERM",
                program,
                "-H",
                socket,
                *places,
                *network,
                "--storage-driver=vfs",
                *runtimes,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": SYSTEM_PATH, "HOME": str(directory)},
            start_new_session=True,
        )


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """Start a docker daemon, or skip the test with the reason."""
    if os.geteuid() != 0:
        pytest.skip("a docker daemon of the test's own needs root")
    programs = {name: shutil.which(name, path=SYSTEM_PATH) or "" for name in ("docker", "dockerd", "runc")}
    if missing := [name for name, path in programs.items() if not path]:
        pytest.skip(f"{', '.join(missing)} is not installed (apt install docker.io)")
    with tempfile.TemporaryDirectory(prefix="dockerd-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / "bin").mkdir()
        client = [programs["docker"], "-H", f"unix://{directory}/socket"]
        _write_program(directory / "bin/docker", f'#!/bin/sh\nexec {shlex.join(client)} "$@"\n')
        registry = Registry()
        server = registry.start()
        process = _start_daemon(directory, programs["dockerd"])
        try:
            _wait_for(process, client, directory / "log")
            yield Daemon(f"{directory}/bin:{SYSTEM_PATH}", client, registry)
        finally:
            server.shutdown()
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
            subprocess.run(["umount", directory / "exec/netns/default"], capture_output=True)


def _wait_for(process: subprocess.Popen[bytes], client: list[str], log: Path) -> None:
    deadline = time.monotonic() + 60
    while subprocess.run([*client, "version"], capture_output=True).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.skip(f"the docker daemon does not start: {log.read_text().strip().splitlines()[-1:]}")
        time.sleep(0.1)


@pytest.fixture
def image(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let local workers use the daemon, which has the image; at the end there is no container."""
    monkeypatch.setenv("PATH", daemon.path)
    daemon("pull", daemon.image)
    return daemon.image

"""Serves the Kubernetes API of an emulator: its application, controllers, kubeconfig and control routes."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Callable
from pathlib import Path

from pydantic import JsonValue, TypeAdapter
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.routing import Route, WebSocketRoute
from uvicorn.config import Config

from tpux import TpuxError
from tpux_emulator.api.control import PREFIX, with_errors
from tpux_emulator.api.exchanges import ExchangeLog
from tpux_emulator.api.middleware import Connection
from tpux_emulator.cloud.cloud import Cloud, log
from tpux_emulator.kubernetes.api import KubernetesApi
from tpux_emulator.kubernetes.certificates import make_certificates
from tpux_emulator.kubernetes.cluster import Cluster, ClusterSettings
from tpux_emulator.kubernetes.exec import Exec, ExecConnection
from tpux_emulator.kubernetes.faults import ExpiryFault, Faults, KubernetesFault
from tpux_emulator.kubernetes.jobsets import JobSetController
from tpux_emulator.kubernetes.kubelet import Kubelet
from tpux_emulator.kubernetes.kueue import Kueue
from tpux_emulator.kubernetes.nodes import Scheduler
from tpux_emulator.kubernetes.objects import JobSet, Pod, Workload
from tpux_emulator.kubernetes.pod_processes import PodProcesses
from tpux_emulator.paths import Home
from tpux_emulator.workers import worker_files

_VERBS = ["GET", "POST", "PATCH", "DELETE"]
_EXEC = "/api/v1/namespaces/{namespace}/pods/{name}/exec"
_FAULT: TypeAdapter[KubernetesFault] = TypeAdapter(KubernetesFault)


class KubernetesService:
    """The Kubernetes API of an emulator. Its objects are in memory only: a restart begins with an empty cluster.

    Args:
        home: the emulator's directory.
        cloud: the clock and the fault rules.
        exchanges: records requests and answers.
        next_address: returns an unused loopback address.
        tls: whether it has TLS, with a CA of its own.
        pod_roots: whether pods have a root file system each, if this machine permits it.
    """

    def __init__(
        self, home: Home, cloud: Cloud, exchanges: ExchangeLog, next_address: Callable[[], str], *, tls: bool,
        pod_roots: bool,
    ) -> None:  # fmt: skip
        self._home, self._tls = home, tls
        self.cluster = Cluster(cloud)
        self.cluster.token = self._token(new=False) if tls else ""
        self._processes = PodProcesses(home, own_root=pod_roots)
        self._scheduler, self._kueue = Scheduler(self.cluster), Kueue(self.cluster)
        self._jobsets, self._kubelet = (
            JobSetController(self.cluster),
            Kubelet(self.cluster, self._processes, next_address),
        )
        self._exec = Exec(self.cluster, self._processes, exchanges)
        self._faults = Faults(self.cluster, self._scheduler, self._kubelet, self._kueue, self._exec)
        self._api = KubernetesApi(self.cluster, self._processes, exchanges)

    def config(self, url: str) -> Config:
        """Return the configuration of the HTTP server, and write the kubeconfig."""
        directory = self._home.kubernetes
        directory.mkdir(mode=0o700, exist_ok=True)
        files = make_certificates(directory) if self._tls else None
        self._write_kubeconfig(url, files.authority if files else None)
        routes = [
            WebSocketRoute(_EXEC, self._exec.serve),
            Route("/{rest:path}", self._api.endpoint(None), methods=_VERBS),
        ]
        hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
        return Config(
            Starlette(routes=routes, middleware=[hosts]), http=Connection, ws=ExecConnection, lifespan="off",
            log_config=None, access_log=False, proxy_headers=False, server_header=False, timeout_graceful_shutdown=1,
            ws_per_message_deflate=False, ws_ping_interval=None, ssl_certfile=files.certificate if files else None,
            ssl_keyfile=files.key if files else None,
        )  # fmt: skip

    async def run(self) -> None:
        """Run the controllers until cancelled."""
        self._processes.open()
        while True:
            due: list[float] = []
            version = self.cluster.version
            try:
                due += self._kueue.run()
                self._jobsets.run()
                due += self._scheduler.run()
                self._kubelet.run()
            except Exception:  # noqa: BLE001  the other objects must go on; the log has the traceback
                log.exception("a controller failed")
                due.append(self.cluster.now + self.cluster.settings.retry)
            if self.cluster.version == version:  # else what they did may give them more to do
                await self.cluster.wait(seconds=max(0.0, min(due) - self.cluster.now) if due else None)
            else:
                await asyncio.sleep(0)

    async def close(self) -> None:
        """End all pods."""
        await self._processes.close()

    def control_routes(self) -> list[Route]:
        """Return the emulator's own routes."""
        base = f"{PREFIX}/kubernetes"
        return [
            Route(base, with_errors(self._status), methods=["GET"]),
            Route(f"{base}/faults", with_errors(self._inject), methods=["POST"]),
            Route(f"{base}/settings", with_errors(self._change), methods=["PATCH"]),
        ]

    async def _status(self, _: Request) -> JsonValue:
        pods = [f"{pod.name} {pod.status.phase} {pod.spec.node_name or '-'}" for pod in self.cluster.all(Pod)]
        jobsets = [jobset.name for jobset in self.cluster.all(JobSet)]
        workloads = [workload.name for workload in self.cluster.all(Workload)]
        settings = self.cluster.settings.model_dump(mode="json")
        return {"pods": [*pods], "jobsets": [*jobsets], "workloads": [*workloads], "settings": settings}

    async def _inject(self, request: Request) -> JsonValue:
        fault = _FAULT.validate_json(await request.body())
        if isinstance(fault, ExpiryFault):
            if fault.fault == "expire-token":
                if not self._tls:
                    raise TpuxError("without `--tls` there are no tokens")
                self.cluster.token = self._token(new=True)
            else:
                self.cluster.oldest = self.cluster.version + 1
        return self._faults.inject(fault)

    async def _change(self, request: Request) -> JsonValue:
        change = json.loads(await request.body())
        settings = ClusterSettings.model_validate({**self.cluster.settings.model_dump(), **change})
        self.cluster.configure(settings)
        return settings.model_dump(mode="json")

    def _token(self, *, new: bool) -> str:
        """Return the token of the kubeconfig's token file; make one if there is none, or a new one is wanted."""
        path = self._home.kubernetes / "token"
        if new or not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            worker_files.write_private(path, secrets.token_urlsafe(24))
        return path.read_text(encoding="utf-8")

    def _write_kubeconfig(self, url: str, authority: Path | None) -> None:
        cluster: dict[str, JsonValue] = {"server": url}
        if authority is not None:
            cluster["certificate-authority-data"] = base64.b64encode(authority.read_bytes()).decode()
        user: JsonValue = {"tokenFile": str(self._home.kubernetes / "token")} if self._tls else {}
        content: JsonValue = {
            "apiVersion": "v1", "kind": "Config", "current-context": "emulated", "preferences": {},
            "clusters": [{"name": "emulated", "cluster": cluster}],
            "users": [{"name": "emulated", "user": user}],
            "contexts": [
                {"name": "emulated", "context": {"cluster": "emulated", "user": "emulated", "namespace": "default"}}
            ],
        }  # fmt: skip
        worker_files.write_private(self._home.kubeconfig, json.dumps(content, indent=2) + "\n")

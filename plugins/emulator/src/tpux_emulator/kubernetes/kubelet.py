"""The kubelets: run the container of each pod that has a node, and end it when the pod is deleted or its node goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tpux_emulator.cloud.cloud import log
from tpux_emulator.kubernetes.cluster import Cluster
from tpux_emulator.kubernetes.nodes import accelerator_environment
from tpux_emulator.kubernetes.objects import ContainerStatus, Pod
from tpux_emulator.kubernetes.pod_processes import PodProcesses


@dataclass(frozen=True)
class Fate:
    """What ends a pod other than its deletion.

    Args:
        at: when it is killed, in emulated Unix seconds.
        reason: the pod's reason; empty for the container's own.
        message: the pod's message.
        disruption: the reason of the condition DisruptionTarget; empty for none.
        terminated: the reason of the container's end.
        silent: whether there is no SIGTERM before.
    """

    at: float
    reason: str = ""
    message: str = ""
    disruption: str = ""
    terminated: str = "Error"
    silent: bool = False


class Kubelet:
    """Runs pods, one task each.

    Args:
        cluster: the cluster.
        processes: starts and ends what runs in pods.
        next_address: returns an unused loopback address.
    """

    def __init__(self, cluster: Cluster, processes: PodProcesses, next_address: Callable[[], str]) -> None:
        self._cluster, self._processes, self._next_address = cluster, processes, next_address
        self._fates: dict[str, Fate] = {}
        self._known: set[str] = set()

    def run(self) -> None:
        """Start a task for each new pod."""
        for pod in self._cluster.all(Pod):
            if pod.uid not in self._known:
                self._known.add(pod.uid)
                self._cluster.cloud.spawn(self._live(pod.uid))

    def end(self, pod: Pod, fate: Fate) -> None:
        """End a pod as a fault says."""
        self._fates[pod.uid] = fate
        self._cluster.put(pod)

    async def _live(self, uid: str) -> None:
        try:
            await self._wait_for_node(uid)
            await self._pull(uid)
            while (pod := self._wanted(uid)) is not None and await self._run_container(pod):
                await self._pause(uid, self._cluster.settings.retry)
            while (pod := self._cluster.find(Pod, uid)) is not None and not pod.deleting:
                await self._cluster.wait(uid)
        finally:
            await self._processes.forget(uid)
            if (pod := self._cluster.find(Pod, uid)) is not None:
                self._cluster.remove(pod)
            self._fates.pop(uid, None)

    def _wanted(self, uid: str) -> Pod | None:
        """Return the pod, if it exists and nothing ends it."""
        pod = self._cluster.find(Pod, uid)
        return None if pod is None or pod.deleting or pod.ended else pod

    async def _wait_for_node(self, uid: str) -> None:
        while (pod := self._wanted(uid)) is not None and not pod.spec.node_name:
            await self._cluster.wait(uid)
        await self._pause(uid, self._cluster.settings.start)

    async def _pause(self, uid: str, seconds: float) -> None:
        until = self._cluster.now + seconds
        while self._wanted(uid) is not None and (left := until - self._cluster.now) > 0:
            await self._cluster.wait(uid, left)

    async def _pull(self, uid: str) -> None:
        """Wait until the image can be pulled. Each failure has the two states and the four events of a real kubelet."""
        while (pod := self._wanted(uid)) is not None:
            settings, image = self._cluster.settings, pod.spec.containers[0].image or ""
            if any(fnmatchcase(image, pattern) for pattern in settings.images):
                self._cluster.event(pod, "Pulled", f'Successfully pulled image "{image}"', by="kubelet")
                return
            failure, waits = (
                f'Failed to pull image "{image}": {settings.pull_error}',
                f'Back-off pulling image "{image}"',
            )
            for state, reason, message in (("ErrImagePull", "Failed", failure), ("ImagePullBackOff", "BackOff", waits)):
                self._cluster.event(pod, reason, message, warning=reason == "Failed", by="kubelet")
                self._cluster.event(pod, "Failed", f"Error: {state}", warning=True, by="kubelet")
                self._set_state(pod, {"waiting": {"reason": state, "message": message}})
                await self._pause(uid, settings.retry / 2)

    async def _run_container(self, pod: Pod) -> bool:
        """Run a pod's container until it ends; return whether it starts again."""
        uid, container = pod.uid, pod.spec.containers[0]
        pod.status.pod_ip = pod.status.pod_ip or self._next_address()
        pod.status.host_ip = pod.status.pod_ip
        named = {each.name: each.value or "" for each in container.env}
        environment = {"HOSTNAME": pod.spec.hostname or pod.name, **accelerator_environment(pod), **named}
        try:
            process = await self._processes.start(pod, environment, self._hosts(pod))
        except OSError as error:
            log.info("pod %s: %s", pod.name, error)
            self._ended(uid, 128, Fate(0.0, terminated="StartError", message=str(error)))
            return False
        if (pod_now := self._cluster.find(Pod, uid)) is not None:
            self._started(pod_now)
        code = await self._until_end(uid, process)
        await self._processes.kill(uid)
        return self._ended(uid, code, self._fates.pop(uid, None))

    async def _until_end(self, uid: str, process: asyncio.subprocess.Process) -> int:
        """Wait until a container ends by itself, or end it: SIGTERM, the grace, SIGKILL."""
        ended, told, deadline = asyncio.ensure_future(process.wait()), False, None
        while not ended.done():
            pod, fate = self._cluster.find(Pod, uid), self._fates.get(uid)
            if pod is None or (pod.deleting and pod.metadata.deletion_grace_period_seconds == 0):
                deadline = 0.0
            elif fate is not None:
                deadline = fate.at
            elif pod.deleting and deadline is None:
                deadline = self._cluster.now + (pod.metadata.deletion_grace_period_seconds or 0)
                self._cluster.event(pod, "Killing", f"Stopping container {pod.spec.containers[0].name}", by="kubelet")
            left = None if deadline is None else deadline - self._cluster.now
            if left is not None and left <= 0:  # without a grace there is no SIGTERM either, which it might obey first
                await self._processes.kill(uid)
                break
            if left is not None and not told and not (fate is not None and fate.silent):
                told = True
                self._processes.terminate(uid)
            changed = asyncio.ensure_future(self._cluster.wait(uid, left))
            await asyncio.wait({ended, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        code = await ended
        return 128 - code if code < 0 else code

    def _started(self, pod: Pod) -> None:
        pod.status.phase, pod.status.start_time = "Running", self._cluster.timestamp()
        for kind in ("Initialized", "ContainersReady", "Ready"):
            self._cluster.set_condition(pod.status.conditions, kind, True)
        for reason, verb in (("Created", "Created"), ("Started", "Started")):
            self._cluster.event(pod, reason, f"{verb} container {pod.spec.containers[0].name}", by="kubelet")
        self._set_state(pod, {"running": {"startedAt": self._cluster.timestamp()}}, ready=True)

    def _ended(self, uid: str, code: int, fate: Fate | None) -> bool:
        """Record the end of a container; return whether it starts again."""
        if (pod := self._cluster.find(Pod, uid)) is None or pod.deleting:
            return False
        policy = pod.spec.restart_policy
        again = fate is None and (policy == "Always" or (policy == "OnFailure" and code != 0))
        reason = fate.terminated if fate else "Error" if code else "Completed"
        end = {"exitCode": code, "reason": reason, "finishedAt": self._cluster.timestamp()}
        for kind in ("ContainersReady", "Ready"):
            self._cluster.set_condition(pod.status.conditions, kind, False, "ContainersNotReady")
        if not again:
            pod.status.phase = "Failed" if code or fate else "Succeeded"
            if fate:
                pod.status.reason, pod.status.message = fate.reason or None, fate.message or None
            if fate and fate.disruption:
                self._cluster.set_condition(
                    pod.status.conditions, "DisruptionTarget", True, fate.disruption, fate.message
                )
        elif pod.status.container_statuses:
            pod.status.container_statuses[0].restart_count += 1
        self._set_state(pod, {"terminated": {**end, "startedAt": pod.status.start_time}})
        return again

    def _set_state(self, pod: Pod, state: dict[str, object], *, ready: bool = False) -> None:
        container = pod.spec.containers[0]
        image, count = container.image or "", sum(each.restart_count for each in pod.status.container_statuses)
        identity = f"containerd://{pod.uid}" if ready else None
        pod.status.container_statuses = [
            ContainerStatus.model_validate(
                {"name": container.name, "image": image, "imageID": f"{image}@sha256:{'0' * 64}" if ready else "",
                 "containerID": identity, "ready": ready, "started": ready, "restartCount": count, "state": state}
            )
        ]  # fmt: skip
        self._cluster.put(pod)

    def _hosts(self, pod: Pod) -> str:
        """Return /etc/hosts with the pods of the same subdomain, as the cluster's DNS has them."""
        lines = ["127.0.0.1 localhost"]
        lines += [
            f"{each.status.pod_ip} {each.spec.hostname}.{each.spec.subdomain} {each.spec.hostname}"
            for each in self._cluster.all(Pod, pod.metadata.namespace or "")
            if each.status.pod_ip and each.spec.subdomain == pod.spec.subdomain and each.spec.hostname
        ]
        return "\n".join(lines) + "\n"

"""The JobSet controller, with the part of the job controller that it needs: pods, failures, restarts, conditions."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from tpux_emulator.kubernetes.cluster import Cluster, is_true, owner, random_suffix
from tpux_emulator.kubernetes.objects import (
    CHIPS,
    EXCLUSIVE,
    JOB_INDEX,
    JOBSET_NAME,
    JOBSET_UID,
    POD_INDEX,
    RESTART,
    EnvVar,
    JobSet,
    Metadata,
    Pod,
    ReplicatedJob,
)
from tpux_emulator.protojson import JsonObject

_BY = "jobset-controller"
_JOB = "batch.kubernetes.io/job-name"
Reason = Literal["BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy"]
_PREFIX = "jobset.sigs.k8s.io"


@dataclass(frozen=True)
class _Failure:
    """A failed job: which, and why."""

    job: str
    replicated: str
    reason: Reason


class JobSetController:
    """Makes the pods of JobSets.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._counted: set[str] = set()
        self._removed: set[str] = set()
        self._failures: defaultdict[str, int] = defaultdict(int)

    def run(self) -> None:
        """Advance every JobSet, and delete the pods whose JobSet is gone."""
        for jobset in self._cluster.all(JobSet):
            self._advance(jobset)
        for pod in self._cluster.all(Pod):
            if (uid := pod.label(JOBSET_UID)) and self._cluster.find(JobSet, uid) is None:
                self._delete(pod)

    def _advance(self, jobset: JobSet) -> None:
        pods, status = self._cluster.pods_of(jobset), jobset.status
        if jobset.deleting:
            self._delete(*pods)
            if not pods:
                self._cluster.remove(jobset)
        elif status.terminal_state:
            self._delete(*(pod for pod in pods if not pod.ended))
        elif not self._suspended(jobset, pods):
            old = [pod for pod in pods if pod.label(RESTART) != str(status.restarts)]
            self._delete(*old)
            if not old or jobset.spec.failure_policy.restart_strategy == "Recreate":
                self._run_jobs(jobset, [pod for pod in pods if pod not in old])
            self._count(jobset)

    def _run_jobs(self, jobset: JobSet, pods: list[Pod]) -> None:
        """Advance the jobs of a JobSet, and end it or start it again if one has failed."""
        failures, done = list[_Failure](), True
        for replicated in jobset.spec.replicated_jobs:
            for index in range(replicated.replicas):
                name = f"{jobset.name}-{replicated.name}-{index}"
                mine = [pod for pod in pods if pod.label(_JOB) == name]
                reason, completed = self._job(jobset, replicated, index, mine)
                if reason:
                    failures.append(_Failure(name, replicated.name, reason))
                done = done and completed
        if failures:
            self._fail(jobset, failures[0])
        elif done:
            self._finish(jobset, "Completed", "AllJobsCompleted", "jobset completed successfully")

    def _suspended(self, jobset: JobSet, pods: list[Pod]) -> bool:
        conditions, suspend = jobset.status.conditions, jobset.spec.suspend
        if not suspend and not is_true(conditions, "Suspended"):
            return False
        reason, message = ("SuspendedJobs", "jobset is suspended") if suspend else ("ResumeJobs", "jobset is resumed")
        if self._cluster.set_condition(conditions, "Suspended", suspend, reason, message):
            self._cluster.event(jobset, reason, message, by=_BY)
            self._cluster.put(jobset)
        if suspend:
            self._delete(*pods)
        # The pods of before must be gone: a stale leader would misplace its followers.
        return suspend or any(pod.deleting for pod in pods)

    def _job(
        self, jobset: JobSet, replicated: ReplicatedJob, index: int, pods: list[Pod]
    ) -> tuple[Reason | None, bool]:
        """Make the missing pods of a job; return why it has failed, and whether it is complete."""
        spec, key = replicated.template.spec, f"{jobset.uid}/{jobset.status.restarts}/{replicated.name}-{index}"
        reason: Reason | None = None
        for pod in pods:
            lost = pod.deleting and pod.uid not in self._removed
            if (pod.status.phase == "Failed" or lost) and pod.uid not in self._counted:
                self._counted.add(pod.uid)
                self._failures[key] += 1
                reason = reason or self._policy(replicated, pod)
        if reason is None and self._failures[key] > spec.backoff_limit:
            reason = "BackoffLimitExceeded"
        if reason is not None:
            self._failures[key] = spec.backoff_limit + 1
            return reason, False
        waits = spec.pod_replacement_policy == "Failed" or spec.pod_failure_policy is not None
        present = {
            pod.label(POD_INDEX) for pod in pods
            if pod.status.phase != "Failed" and (not pod.deleting or waits)
        }  # fmt: skip
        for number in range(spec.parallelism):
            if str(number) not in present:
                self._cluster.create(self._pod(jobset, replicated, index, number))
        return None, sum(pod.status.phase == "Succeeded" for pod in pods) >= spec.completions

    def _policy(self, replicated: ReplicatedJob, pod: Pod) -> Reason | None:
        """Return `PodFailurePolicy` if a rule of the job lets it fail for this pod."""
        policy = replicated.template.spec.pod_failure_policy
        codes = [each.state.get("terminated") for each in pod.status.container_statuses]
        ends = [end["exitCode"] for end in codes if isinstance(end, dict)]
        for rule in policy.rules if policy else []:
            wanted = {str(each["type"]) for each in rule.on_pod_conditions or [] if isinstance(each, dict)}
            matches = any(is_true(pod.status.conditions, kind) for kind in wanted)
            if (exits := rule.on_exit_codes) and isinstance(values := exits.get("values"), list):
                inside = exits.get("operator") != "NotIn"
                matches = any(code != 0 and (code in values) == inside for code in ends)
            if matches:
                return "PodFailurePolicy" if rule.action == "FailJob" else None
        return None

    def _fail(self, jobset: JobSet, failure: _Failure) -> None:
        """Apply the failure policy: fail the JobSet, or start it again."""
        status, policy = jobset.status, jobset.spec.failure_policy
        rule = next(
            (
                rule for rule in policy.rules
                if failure.reason in (rule.on_job_failure_reasons or [failure.reason])
                and failure.replicated in (rule.target_replicated_jobs or [failure.replicated])
            ),
            None,
        )  # fmt: skip
        action = rule.action if rule else "RestartJobSet"
        about = f"(first failed job: {failure.job}, job failure reason: {failure.reason})"
        if action == "FailJobSet":
            self._finish(jobset, "Failed", "FailJobSetFailurePolicyAction", f"applying FailJobSet action {about}")
            return
        ignore = action.endswith("IgnoreMaxRestarts")
        if not ignore and policy.max_restarts == 0 and not policy.rules:
            message = f"jobset failed due to one or more job failures {about}"
            self._finish(jobset, "Failed", "FailedJobs", message)
            return
        if not ignore and status.restarts_count_towards_max >= policy.max_restarts:
            self._finish(
                jobset, "Failed", "ReachedMaxRestarts", f"jobset failed due to reaching max number of restarts {about}"
            )
            return
        status.restarts += 1
        status.restarts_count_towards_max += not ignore
        self._cluster.event(jobset, "RestartJobSet", f"restarting jobset {about}", warning=True, by=_BY)
        self._cluster.put(jobset)

    def _finish(self, jobset: JobSet, state: str, reason: str, message: str) -> None:
        jobset.status.terminal_state = state
        self._cluster.set_condition(jobset.status.conditions, state, True, reason, message)
        self._cluster.event(jobset, reason, message, warning=state == "Failed", by=_BY)
        self._cluster.put(jobset)

    def _count(self, jobset: JobSet) -> None:
        """Count the jobs of each kind in the status."""
        pods = [pod for pod in self._cluster.pods_of(jobset) if pod.label(RESTART) == str(jobset.status.restarts)]
        rows: list[JsonObject] = []
        for replicated in jobset.spec.replicated_jobs:
            row = {"ready": 0, "active": 0, "failed": 0, "succeeded": 0, "suspended": 0}
            for index in range(replicated.replicas):
                name = f"{jobset.name}-{replicated.name}-{index}"
                mine = [pod for pod in pods if pod.label(_JOB) == name]
                good = sum(is_true(pod.status.conditions, "Ready") and not pod.deleting for pod in mine)
                over = sum(pod.status.phase == "Succeeded" for pod in mine)
                row["ready"] += good + over >= replicated.template.spec.parallelism
                row["succeeded"] += over >= replicated.template.spec.completions
                row["failed"] += any(pod.status.phase == "Failed" for pod in mine)
                row["active"] += any(not pod.ended for pod in mine)
            rows.append({"name": replicated.name, **row})
        if rows != jobset.status.replicated_jobs_status:
            jobset.status.replicated_jobs_status = rows
            self._cluster.put(jobset)

    def _delete(self, *pods: Pod) -> None:
        for pod in pods:
            if not pod.deleting:
                self._removed.add(pod.uid)
                self._cluster.delete(pod)

    def _pod(self, jobset: JobSet, replicated: ReplicatedJob, index: int, number: int) -> Pod:
        """Return a new pod, with the labels of JobSet and the environment that GKE's webhook adds."""
        template = replicated.template.spec.template
        job, host = f"{jobset.name}-{replicated.name}-{index}", f"{jobset.name}-{replicated.name}-{index}-{number}"
        own = {
            JOBSET_NAME: jobset.name, JOBSET_UID: jobset.uid, f"{_PREFIX}/replicatedjob-name": replicated.name,
            f"{_PREFIX}/replicatedjob-replicas": str(replicated.replicas), JOB_INDEX: str(index),
            RESTART: str(jobset.status.restarts), f"{_PREFIX}/job-global-index": str(index),
        }  # fmt: skip
        batch = {_JOB: job, "job-name": job, POD_INDEX: str(number)}
        given = {**(replicated.template.metadata.labels or {}), **(template.metadata.labels or {})}
        noted = {**(replicated.template.metadata.annotations or {}), **(template.metadata.annotations or {})}
        if (key := (jobset.metadata.annotations or {}).get(EXCLUSIVE)) is not None:
            noted[EXCLUSIVE] = key
        reference = owner(jobset).model_copy(update={"api_version": "batch/v1", "kind": "Job", "name": job,
                                                     "uid": str(uuid.uuid5(uuid.UUID(jobset.uid), job))})  # fmt: skip
        spec = template.spec.model_copy(deep=True)
        spec.hostname, spec.subdomain = host, jobset.spec.network.subdomain or jobset.name
        pod = self._cluster.new(Pod, f"{host}-{random_suffix()}", jobset.metadata.namespace or "", spec=spec)
        pod.metadata = Metadata(
            name=pod.name, namespace=jobset.metadata.namespace, labels={**given, **own, **batch},
            annotations={**noted, **own, POD_INDEX: str(number)}, owner_references=[reference],
        )  # fmt: skip
        for container in spec.containers:
            if int(container.resources.limits.get(CHIPS, 0)):
                given_names = {each.name for each in container.env}
                added = webhook_environment(jobset, replicated, index, number)
                container.env += [EnvVar(name=k, value=v) for k, v in added.items() if k not in given_names]
        return pod


def webhook_environment(jobset: JobSet, replicated: ReplicatedJob, index: int, number: int) -> dict[str, str]:
    """Return what GKE's webhook adds to the pods of a job with several hosts and a subdomain."""
    count, found = replicated.template.spec.parallelism, dict[str, str]()
    domain = jobset.spec.network.subdomain or jobset.name
    if count > 1:
        names = (f"{jobset.name}-{replicated.name}-{index}-{each}.{domain}" for each in range(count))
        found |= {"TPU_WORKER_ID": str(number), "TPU_WORKER_HOSTNAMES": ",".join(names)}
    if replicated.replicas > 1:
        first = f"{jobset.name}-{replicated.name}-0-0.{domain}"
        found |= {"MEGASCALE_NUM_SLICES": str(replicated.replicas), "MEGASCALE_SLICE_ID": str(index),
                  "MEGASCALE_COORDINATOR_ADDRESS": first}  # fmt: skip
    return found

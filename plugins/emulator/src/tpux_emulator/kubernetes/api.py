"""The HTTP side of the Kubernetes API: discovery, objects, access reviews; with the fault rules of the emulator."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from urllib.parse import parse_qsl

from pydantic import JsonValue, ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tpux_emulator.api.call import Method
from tpux_emulator.api.exchanges import Exchange, ExchangeLog
from tpux_emulator.api.middleware import FaultMiddleware
from tpux_emulator.cloud.fault_rules import FaultRule
from tpux_emulator.kubernetes.cluster import Cluster
from tpux_emulator.kubernetes.objects import (
    JOBSET_GROUP,
    KUEUE_GROUP,
    QUEUE_LABEL,
    RESOURCES,
    AccessReview,
    JobSet,
    KubeObject,
    Namespace,
    Pod,
    Resource,
)
from tpux_emulator.kubernetes.pod_processes import PodProcesses
from tpux_emulator.kubernetes.status import KubeError, invalid, not_found
from tpux_emulator.protojson import JsonObject

VERSION: JsonObject = {
    "major": "1", "minor": "34", "gitVersion": "v1.34.1-gke.3084001", "gitCommit": "", "gitTreeState": "clean",
    "buildDate": "", "goVersion": "", "compiler": "gc", "platform": "linux/amd64",
}  # fmt: skip
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_PROTOBUF = "application/vnd.kubernetes.protobuf"  # of kubectl, for what is built in
_ALL_VERBS = ["create", "delete", "get", "list", "patch"]


@dataclass(frozen=True)
class Target:
    """What a request is about.

    Args:
        resource: the resource.
        version: its version in the path.
        namespace: the namespace; empty for none, or all.
        name: the object; empty for the collection.
        sub: the subresource, such as `log`; empty for the object itself.
    """

    resource: Resource
    version: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def what(self) -> str:
        """The resource with its subresource, as permissions name it."""
        return f"{self.resource.plural}/{self.sub}" if self.sub else self.resource.plural


def served(cluster: Cluster) -> list[Resource]:
    """Return the resources that the cluster serves."""
    off = {*([] if cluster.settings.jobset else [JOBSET_GROUP]), *([] if cluster.settings.queue else [KUEUE_GROUP])}
    return [each for each in RESOURCES if each.group not in off]


def find_target(cluster: Cluster, path: str) -> Target | None:
    """Return what a path names; None if there is no such resource."""
    parts = path.strip("/").split("/")
    if parts[0] == "api":
        group, version, rest = "", "".join(parts[1:2]), parts[2:]
    else:
        group, version, rest = "".join(parts[1:2]), "".join(parts[2:3]), parts[3:]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    for each in served(cluster):
        if rest and (each.group, each.plural) == (group, rest[0]) and version in each.versions:
            return Target(each, version, namespace, "".join(rest[1:2]), "/".join(rest[2:]))
    return None


def authorize(cluster: Cluster, headers: Headers) -> None:
    """Check where a request comes from: no page of a browser, and with TLS only who has the cluster's token.

    Without TLS there are no tokens: kubectl does not send them then.

    Raises:
        KubeError: it may not be served.
    """
    origin = headers.get("origin", "")
    if origin and origin.partition("://")[2] != headers.get("host"):  # Python's WebSocket client sends its own
        raise KubeError(403, "no browsers")
    token = headers.get("authorization", "")
    if cluster.token and not secrets.compare_digest(token.encode(), f"Bearer {cluster.token}".encode()):
        raise KubeError(401)


def permit(cluster: Cluster, verb: str, target: Target) -> None:
    """Check that the client may do something.

    Raises:
        KubeError: it may not.
    """
    if f"{verb} {target.what}" in cluster.settings.denied:
        group, where = target.resource.group, f' in the namespace "{target.namespace}"' if target.namespace else ""
        raise KubeError(
            403, f'{target.resource.full} "{target.name}" is forbidden: User "emulated" cannot {verb} resource'
            f' "{target.what}" in API group "{group}"{where}',
        )  # fmt: skip


class KubernetesApi(FaultMiddleware):
    """Answers the requests of the Kubernetes API. The methods of fault rules are `kube.jobsets.create` and so on.

    Args:
        cluster: the cluster.
        processes: what runs in the pods, for their logs.
        exchanges: records requests and answers.
    """

    def __init__(self, cluster: Cluster, processes: PodProcesses, exchanges: ExchangeLog) -> None:
        super().__init__(cluster.cloud, exchanges)
        self._cluster, self._processes = cluster, processes

    def _exchange(self, request: Request, method: Method | None, payload: bytes) -> Exchange:
        exchange = super()._exchange(request, method, payload)
        target = find_target(self._cluster, exchange.path)
        verb = _VERBS.get(request.method, "get" if target is None or target.name else "list")
        what = target.what.replace("/", ".") if target else "discovery"
        return exchange.model_copy(update={"method": f"kube.{what}.{verb}"})

    def _refusal(self, rule: FaultRule, exchange: Exchange) -> tuple[int, JsonObject]:  # noqa: ARG002
        return rule.status, KubeError(rule.status, rule.message).body()

    def _respond(self, exchange: Exchange) -> Response:
        if isinstance(exchange.answer, str):
            return Response(exchange.answer, exchange.status, media_type="text/plain")
        headers = {"Retry-After": "1"} if exchange.status == 429 else None
        return JSONResponse(exchange.answer, exchange.status, headers)

    def _answer(self, request: Request, method: Method | None, payload: bytes, exchange: Exchange) -> None:  # noqa: ARG002
        try:
            authorize(self._cluster, request.headers)
            exchange.status = 200
            exchange.answer = self._handle(request, exchange)
        except KubeError as error:
            exchange.status, exchange.answer = error.code, error.body()

    def _handle(self, request: Request, exchange: Exchange) -> JsonValue:
        path, target = exchange.path.rstrip("/"), find_target(self._cluster, exchange.path)
        if target is None:
            if exchange.verb != "GET" or (found := self._discover(path)) is None:
                exchange.status = 404
                return "404 page not found\n"  # no Status: of what it does not know the API server says no more
            return found
        verb = exchange.method.rpartition(".")[2]
        permit(self._cluster, verb, target)
        kind = request.headers.get("content-type", "").partition(";")[0]
        if (verb == "patch" and kind not in _PATCHES) or kind == _PROTOBUF:
            raise KubeError(415, f"the body of the request was in an unknown format: {kind}", "UnsupportedMediaType")
        body = exchange.body if isinstance(exchange.body, dict) else {}
        query = dict(parse_qsl(request.url.query))
        if target.sub == "log" and target.resource.model is Pod and verb == "get":
            return self._log(self._cluster.get(Pod, target.namespace, target.name), query)
        if target.sub == "exec":
            raise KubeError(400, "Upgrade request required")
        if target.sub not in ("", "status"):
            raise KubeError(404, "the server could not find the requested resource")
        if verb == "create":
            exchange.status = 201
            return self._create(target, body, query)
        if verb == "list":
            return self._list(target, query)
        return self._on_object(verb, target, body, query)

    def _on_object(self, verb: str, target: Target, body: JsonObject, query: dict[str, str]) -> JsonObject:
        if verb == "delete" and not target.name:
            raise KubeError(405, "the server does not allow this method on the requested resource")
        each = self._object(target)
        if verb == "delete":
            return self._delete(each, target, body, query)
        if verb == "patch":
            each = self._cluster.patch(each, body)
        return self._shown(each, target)

    def _log(self, pod: Pod, query: dict[str, str]) -> str:
        lines = self._processes.console(pod.uid).decode(errors="replace").splitlines(keepends=True)
        tail = query.get("tailLines", "")
        return "".join(lines[-int(tail) :] if tail.isdigit() and tail != "0" else lines)

    def _object(self, target: Target) -> KubeObject:
        found = self._cluster.lookup(target.resource.model, target.namespace, target.name)
        if found is None:
            raise not_found(target.resource.full, target.name)
        return found

    def _create(self, target: Target, body: JsonObject, query: dict[str, str]) -> JsonObject:
        resource = target.resource
        wanted, got = (resource.kind, resource.api_version(target.version)), (body.get("kind"), body.get("apiVersion"))
        built_in = not resource.group.endswith("x-k8s.io")
        if got != wanted and not (built_in and got == (None, None)):
            raise KubeError(400, f"the kind and API version in the data {got} do not match the expected ones {wanted}")
        metadata = body.get("metadata")
        metadata = {**metadata} if isinstance(metadata, dict) else {}
        if resource.namespaced:
            if metadata.setdefault("namespace", target.namespace) != target.namespace:
                raise KubeError(
                    400, "the namespace of the provided object does not match the namespace sent on the request"
                )
            if self._cluster.lookup(Namespace, "", target.namespace) is None:
                raise not_found("namespaces", target.namespace)
        name = str(metadata.get("name") or "")
        given: JsonObject = {
            **body, "apiVersion": resource.api_version(), "kind": resource.kind, "metadata": metadata,
        }  # fmt: skip
        given.pop("status", None)
        try:
            each = resource.model.model_validate(given)
        except ValidationError as error:
            raise invalid(resource.kind, name, error) from error
        if isinstance(each, AccessReview):
            return self._review(each, target)
        if isinstance(each, JobSet):
            _check(each)
            each.spec.suspend = each.spec.suspend or bool(each.label(QUEUE_LABEL) and self._cluster.settings.queue)
        if query.get("dryRun") != "All":
            each = self._cluster.create(each)
        return self._shown(each, target)

    def _review(self, review: AccessReview, target: Target) -> JsonObject:
        asked = review.spec.get("resourceAttributes")
        attributes = asked if isinstance(asked, dict) else {}
        sub = f"/{attributes['subresource']}" if attributes.get("subresource") else ""
        denied = f"{attributes.get('verb')} {attributes.get('resource')}{sub}" in self._cluster.settings.denied
        review.status = {"allowed": not denied, **({"reason": "no RBAC policy matched"} if denied else {})}
        return self._shown(review, target)

    def _list(self, target: Target, query: dict[str, str]) -> JsonObject:
        resource, cluster = target.resource, self._cluster
        if query.get("watch") in ("true", "1"):
            raise KubeError(405, "the emulator has no watches: poll")
        found = sorted(
            cluster.all(resource.model, target.namespace), key=lambda o: (o.metadata.namespace or "", o.name)
        )
        found = [each for each in found if _matches(each, query)]
        start, version = 0, cluster.version
        if token := query.get("continue"):
            try:
                start, version = json.loads(base64.b64decode(token))
            except ValueError as error:
                raise KubeError(400, "continue key is not valid") from error
            if version < cluster.oldest:
                raise KubeError(410, "The provided continue parameter is too old to display a consistent list result.")
        limit = int(query.get("limit") or 0) or len(found)
        meta: JsonObject = {"resourceVersion": str(version)}
        if start + limit < len(found):
            meta["continue"] = base64.b64encode(json.dumps([start + limit, version]).encode()).decode()
            meta["remainingItemCount"] = len(found) - start - limit
        items: list[JsonValue] = [self._shown(each, target) for each in found[start : start + limit]]
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version(target.version),
            "metadata": meta,
            "items": items,
        }

    def _delete(self, each: KubeObject, target: Target, body: JsonObject, query: dict[str, str]) -> JsonObject:
        options = {**query, **body}
        wanted = options.get("preconditions")
        uid = wanted.get("uid") if isinstance(wanted, dict) else None
        if uid is not None and uid != each.uid:
            raise KubeError(
                409,
                f'Operation cannot be fulfilled on {target.resource.full} "{each.name}": the UID in the precondition'
                f" ({uid}) does not match the UID in record ({each.uid}). The object might have been deleted and then"
                " recreated",
            )
        grace = options.get("gracePeriodSeconds")
        foreground = options.get("propagationPolicy") == "Foreground"
        seconds = None if grace is None else int(str(grace))
        deleted = self._cluster.delete(each, grace=seconds, foreground=foreground and isinstance(each, JobSet))
        if self._cluster.exists(deleted):
            return self._shown(deleted, target)
        details: JsonObject = {"name": each.name, "kind": target.resource.plural, "uid": each.uid}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def _shown(self, each: KubeObject, target: Target) -> JsonObject:
        return {**each.to_json(), "apiVersion": target.resource.api_version(target.version)}

    def _discover(self, path: str) -> JsonValue:
        resources = served(self._cluster)
        groups = {each.group: each.versions for each in resources if each.group}
        if path == "/version":
            return VERSION
        if path in ("/healthz", "/readyz", "/livez"):
            return "ok"
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if path == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*each) for each in groups.items()]}
        parts = path.strip("/").split("/")
        if parts[0] == "apis" and len(parts) == 2 and parts[1] in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], groups[parts[1]])}
        wanted = "v1" if path == "/api/v1" else "/".join(parts[1:]) if parts[0] == "apis" else ""
        listed = [each for each in resources if wanted in {each.api_version(version) for version in each.versions}]
        if not listed:
            return None
        rows = [row for each in listed for row in _rows(each)]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": wanted, "resources": [*rows]}


def _group(name: str, versions: tuple[str, ...]) -> JsonObject:
    rows: list[JsonValue] = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": rows, "preferredVersion": rows[0]}


def _rows(resource: Resource) -> list[JsonObject]:
    """Return the rows of a resource and its subresources in an APIResourceList."""
    kind = resource.kind
    verbs: list[JsonValue] = ["create"] if resource.model is AccessReview else [*_ALL_VERBS]
    row: JsonObject = {"name": resource.plural, "singularName": kind.lower(), "namespaced": resource.namespaced,
                       "kind": kind, "verbs": verbs, "shortNames": [*resource.short]}  # fmt: skip
    if resource.model is not Pod:
        return [row]
    pod: JsonObject = {"singularName": "", "namespaced": True}
    execs: JsonObject = {"name": "pods/exec", "kind": "PodExecOptions", "verbs": ["create", "get"], **pod}
    return [row, execs, {"name": "pods/log", "kind": "Pod", "verbs": ["get"], **pod}]


def _matches(each: KubeObject, query: dict[str, str]) -> bool:
    """Return whether an object has the labels and fields that a list asks for."""
    labels = each.metadata.labels or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, sign, value = term.partition("!=") if "!=" in term else term.replace("==", "=").partition("=")
        if sign == "!=" and labels.get(key.strip()) == value.strip():
            return False
        if sign == "=" and labels.get(key.strip()) != value.strip():
            return False
        if not sign and (key.strip().lstrip("!") in labels) == key.startswith("!"):
            return False
    dumped = each.to_json()
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        key, _, wanted = term.replace("==", "=").partition("=")
        found: JsonValue = dumped
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if str(found or "") != wanted:
            return False
    return True


def _check(jobset: JobSet) -> None:
    """Check what JobSet's webhook and the API server check of the jobs.

    Raises:
        KubeError: it is not valid.
    """
    for replicated in jobset.spec.replicated_jobs:
        spec = replicated.template.spec
        longest = (
            f"{jobset.name}-{replicated.name}-{max(0, replicated.replicas - 1)}-{max(0, spec.parallelism - 1)}-xxxxx"
        )
        if len(longest) > 63:
            raise KubeError(
                422,
                f"admission webhook denied the request: the names of this JobSet's pods would be too long: {longest}",
            )
        if spec.pod_failure_policy and spec.template.spec.restart_policy != "Never":
            raise KubeError(
                422, "spec.template.spec.restartPolicy: Invalid value: only Never is supported with podFailurePolicy"
            )
        if spec.template.spec.restart_policy == "Always":
            spec.template.spec.restart_policy = "OnFailure"  # the default of JobSet's webhook

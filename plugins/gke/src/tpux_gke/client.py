"""The few calls of the Kubernetes API that tpux makes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast

from tpux import JsonValue, TpuxError, plain_reason
from tpux_gke.cluster import Cluster, stored
from tpux_gke.login import Login
from tpux_gke.objects import Object, parts, text

if TYPE_CHECKING:
    from httpx import Client as HttpClient
    from httpx import Response

TIMEOUT = 15.0
"""Seconds for a call."""
_PAGE = 500
_LONGEST_PAUSE = 60.0
"""Seconds that are waited at most because the API, or what is before it, asks for it."""
_LIST_TRIES = 3
"""How often a list is read anew when it has expired between two of its pages."""
JOBSETS = "apis/jobset.x-k8s.io/v1alpha2"
_GATEWAY = "a gateway may have answered in its place: kubectl get jobsets must work, with the context of the job"
KUEUE = "kueue.x-k8s.io"
_NO_API = (404, "404 page not found")
"""What the API says, without a Status, of a path that it does not serve. Some gateways say it of everything."""
FOREVER_REFUSED = frozenset({400, 403, 404, 405, 415, 422})
"""Answers to a request that the same request would get again."""


class ApiError(TpuxError):
    """The API has refused a call, or has not answered.

    Attributes:
        status: the HTTP status; 0 without an answer, when the call may have taken effect.
        retry_after: how long to wait because the API asks for it, in seconds; None if it does not.
    """

    def __init__(self, message: str, status: int = 0, *, hint: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.retry_after = retry_after


class Client:
    """A cluster's API. Any thread may use it.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.login = Login(cluster)
        self._lock = threading.Lock()
        self._http: HttpClient | None = None
        self._certificate = ""  # that its connections have
        self._kueue = ""

    def get(self, path: str) -> Object | None:
        """Return an object, None if the API says that there is none."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **parameters: str) -> list[Object]:
        """Return all objects of a list, which comes in pages.

        Raises:
            ApiError: it could not be read to its end.
        """
        for _ in range(_LIST_TRIES):
            try:
                return self._pages(path, parameters)
            except ApiError as error:
                if error.status != 410:
                    raise
        raise ApiError(f"the list {path} has expired while it was read", 410)

    def request(
        self, method: str, path: str, parameters: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        """Make one call; after 401 once more, with the login read again.

        Raises:
            ApiError: it was refused, or not answered.
        """
        answer = self._send(method, path, parameters, body)
        if answer.status_code == 401:
            self.forget()
            answer = self._send(method, path, parameters, body)
        try:
            content = cast("JsonValue", answer.json())
        except ValueError:
            content = None
        found = content if isinstance(content, dict) else {}
        kind = text(found, "kind")
        if answer.is_success and kind:
            return found
        if answer.is_success:
            what = f"HTTP {answer.status_code} is not an answer of Kubernetes: {answer.text[:200].strip()}"
            raise ApiError(what, hint=_GATEWAY)
        if kind != "Status" and answer.status_code not in {401, 429}:
            if (answer.status_code, answer.text.strip()) == _NO_API and path.startswith("apis/"):
                raise self._unserved(path)
            said = answer.text[:200].strip() or answer.reason_phrase
            raise ApiError(f"HTTP {answer.status_code} is not an answer of Kubernetes: {said}", hint=_GATEWAY)
        said = text(found, "message") or answer.text[:200].strip() or answer.reason_phrase
        hint = ""
        if pause := _pause(answer):
            said += f"; tpux waits {pause:.0f} s, as the API asks, until the next call"
        if answer.status_code == 401:
            hint = "log in again: `kubectl get pods` must work, with the context of the job"
        elif answer.status_code == 403:
            hint = "ask the cluster's administrator for the permissions in docs/gke.md"
        # A little more than it asks for, so that many clients do not return at the same moment.
        retry_after = pause * random.uniform(1, 1.25) if pause else None  # noqa: S311  (no secret)
        raise ApiError(f"HTTP {answer.status_code}: {said}", answer.status_code, hint=hint, retry_after=retry_after)

    def forget(self) -> None:
        """Read the login again for the next call, and connect anew."""
        self.login.forget()
        with self._lock:
            self._http = None  # not closed: other threads may use it

    def namespaced(self, path: str, *names: str) -> str:
        """Return the path of objects of the job's namespace, such as `api/v1` and `pods`."""
        return "/".join((path, "namespaces", self.cluster.namespace, *names))

    def jobset(self, name: str) -> Object | None:
        """Return a JobSet.

        Raises:
            ApiError: it is not known whether there is one.
        """
        found = self.get(self.namespaced(JOBSETS, "jobsets", name))
        return None if found is None else _jobset(found, name)

    def create_jobset(self, wanted: Object) -> Object:
        """Create a JobSet, and return it.

        Raises:
            ApiError: it was refused, or it is not known whether it was created.
        """
        made = self.request("POST", self.namespaced(JOBSETS, "jobsets"), body=wanted)
        return _jobset(made, text(wanted, "metadata", "name"))

    def kueue(self) -> str:
        """Return the path of Kueue's API in the version that the cluster prefers."""
        if not self._kueue:
            group = self.get(f"apis/{KUEUE}")
            if group is None:
                raise ApiError("the cluster has no Kueue", 404, hint="remove tpu.queue, or ask the administrator")
            version = text(group, "preferredVersion", "version") or "v1beta1"
            self._kueue = f"apis/{KUEUE}/{version}"
        return self._kueue

    def pods(self, selector: str) -> list[Object]:
        """Return the pods of the namespace with some labels."""
        return self.items(self.namespaced("api/v1", "pods"), labelSelector=selector)

    def events(self, name: str) -> Iterator[Object]:
        """Yield the events of an object of the namespace."""
        found = self.items(self.namespaced("api/v1", "events"), fieldSelector=f"involvedObject.name={name}")
        yield from (one for one in found if text(one, "involvedObject", "name") == name)

    def _unserved(self, path: str) -> ApiError:
        """Return what is wrong with a path that is not served, after a look at the groups that are.

        Without its group, whose definitions somebody has deleted, there are no objects below the path either.

        Raises:
            ApiError: it is not Kubernetes that has answered.
        """
        group, version, *objects = f"{path}/".split("/")[1:]
        groups = self.request("GET", "apis")
        if text(groups, "kind") != "APIGroupList":
            return ApiError(f"the answer is a {text(groups, 'kind')}, not the groups of the API", hint=_GATEWAY)
        known = next((parts(one, "versions") for one in parts(groups, "groups") if one.get("name") == group), ())
        versions = [text(one, "version") for one in known]
        hint = f"ask the cluster's administrator; this lists what it serves: {self.cluster.kubectl('api-versions')}"
        if versions and any(objects):
            said = f"the cluster serves {group} in the versions {', '.join(versions)}, not {version}"
            return ApiError(said, hint=hint)
        return ApiError(f"the cluster does not serve {group}/{version}".rstrip("/"), 404, hint=hint)

    def _pages(self, path: str, parameters: Mapping[str, str]) -> list[Object]:
        found: list[Object] = []
        more = ""
        while True:
            following = {"continue": more} if more else {}
            page = self.request("GET", path, {**parameters, "limit": str(_PAGE), **following})
            if not isinstance(page.get("items"), list):
                raise ApiError(f"the answer is a {text(page, 'kind')}, not a list of {path}", hint=_GATEWAY)
            found += parts(page, "items")
            if not (more := text(page, "metadata", "continue")):
                return found

    def _send(self, method: str, path: str, parameters: Mapping[str, str] | None, body: Object | None) -> Response:
        import httpx

        headers = {"Accept": "application/json"}
        try:
            if token := self.login.token():
                headers["Authorization"] = f"Bearer {token}"
            http = self._connection()
            name = {"sni_hostname": self.cluster.tls_name} if self.cluster.tls_name else None
            return http.request(method, f"/{path}", params=parameters, json=body, headers=headers, extensions=name)
        except httpx.HTTPError as error:
            said = plain_reason(error) or type(error).__name__
            raise ApiError(f"the Kubernetes API at {self.cluster.server} does not answer: {said}") from error
        except ApiError:
            raise
        except TpuxError as error:
            raise ApiError(error.message, 401, hint=error.hint) from error

    def _connection(self) -> HttpClient:
        import httpx

        certificate = self.login.credential().certificate
        with self._lock:
            if self._http is not None and self._certificate == certificate:
                return self._http
        tls = self.login.tls()
        made = httpx.Client(
            base_url=self.cluster.server, verify=True if tls is None else tls, timeout=TIMEOUT, trust_env=True
        )
        with self._lock:
            if self._http is None or self._certificate != certificate:
                self._http, self._certificate = made, certificate
            return self._http


def _jobset(found: Object, name: str) -> Object:
    if (text(found, "kind"), text(found, "metadata", "name")) != ("JobSet", name):
        raise ApiError(f"the answer is a {text(found, 'kind')}, not the JobSet {name}", hint=_GATEWAY)
    return found


def _pause(answer: Response) -> float:
    given = answer.headers.get("Retry-After", "")
    return min(float(given), _LONGEST_PAUSE) if given.isdecimal() else 0.0


_clients: dict[str, Client] = {}
_lock = threading.Lock()


def client_of(resolved: Mapping[str, JsonValue]) -> Client:
    """Return the client for what `resolve` has stored: one in each process, with its connections.

    Raises:
        TpuxError: no cluster was found when the job was created.
    """
    cluster = stored(resolved)
    with _lock:
        return _clients.setdefault(cluster.key, Client(cluster))
